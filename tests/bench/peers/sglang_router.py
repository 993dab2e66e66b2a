#!/usr/bin/env python3
"""Starts the real sglang-router, from the wheel unpacked in the first argument, with the others.

Its own launcher also imports an HTTP library and a process renamer for modes not used here; so this
goes to its argument parser and its router directly.
"""
import argparse
import sys

sys.path.insert(0, sys.argv[1])
from sglang_router.router import Router  # noqa: E402
from sglang_router.router_args import RouterArgs  # noqa: E402

parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser, use_router_prefix=False)
args = RouterArgs.from_cli_args(parser.parse_args(sys.argv[2:]), use_router_prefix=False)
args._validate_router_args()
Router.from_args(args).start()
