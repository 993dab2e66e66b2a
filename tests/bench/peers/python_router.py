#!/usr/bin/env python3
"""Starts the real sglang-router or smg: python_router.py FOLDER PACKAGE ARGS..., from its wheel unpacked in FOLDER.

Their own launchers also import libraries for modes not used here (an HTTP client, a process renamer); so this goes
to their argument parser and their router directly.
"""
import argparse
import importlib
import sys

folder, package = sys.argv[1:3]
sys.path.insert(0, folder)
Router = importlib.import_module(f"{package}.router").Router
RouterArgs = importlib.import_module(f"{package}.router_args").RouterArgs

parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser, use_router_prefix=False)
args = RouterArgs.from_cli_args(parser.parse_args(sys.argv[3:]), use_router_prefix=False)
args._validate_router_args()
Router.from_args(args).start()
