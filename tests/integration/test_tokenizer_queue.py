"""Texts of megabytes beside a page: what cannot fit is refused unread, and what is read delays no other request."""
import json
import threading

import pytest

from conftest import DEMO_MODEL, SANITIZER, Worker, http, wait_for

MIB = 1 << 20
PAGE = "It was the best of times, it was the worst of times. " * 110  # 5.8 KB


def worker_with(start, *args):
    return start(Worker, "--backend", "sim", "--model", DEMO_MODEL, *args).ready()


@pytest.mark.parametrize("text,size", [(" ", 30 * MIB), ("word ", 2 * MIB)])
def test_prompt_that_can_never_fit_is_refused_unread(programs, text, size):
    worker = worker_with(programs, "--tokenizer-threads", 1)
    prompt = text * (size // len(text))
    for body in {"prompt": prompt}, {"prompt": [prompt[:size // 2]] * 2}:
        answer = worker.post("/v1/completions", {**body, "max_tokens": 1})
        error = answer.json["error"]
        assert answer.code == 400 and error["param"] == "prompt"
        assert "this model's maximum context length is 4096 tokens" in error["message"]
        assert "the prompt has more than 4095 tokens" in error["message"]
    chat = worker.post("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]})
    assert chat.code == 400 and chat.json["error"]["param"] == "messages"
    assert worker.metric("incipit_tokenizer_refused_total", reason="length") == 4
    assert worker.metric("incipit_tokenizer_slices_total") == 0


def test_prompt_of_too_many_tokens_is_not_read_to_its_end(programs):
    worker = worker_with(programs, "--tokenizer-threads", 1)
    answer = worker.post("/v1/completions", {"prompt": "\u00e9\u65e5" * 50000, "max_tokens": 1})  # 250 KB
    assert answer.code == 400 and "more than 4095 tokens" in answer.json["error"]["message"]
    refused = [worker.metric("incipit_tokenizer_refused_total", reason=r) for r in ("length", "tokens")]
    assert sum(refused) == 1 and worker.metric("incipit_tokenizer_slices_total") < 250000 / 32768


def test_prompt_that_is_cut_to_a_length_may_have_any(programs):
    worker = worker_with(programs)
    answer = worker.post("/v1/completions", {"prompt": PAGE * 100, "max_tokens": 1, "truncate_prompt_tokens": 20})
    assert answer.code == 200 and answer.json["usage"]["prompt_tokens"] == 20


@pytest.mark.parametrize("n_threads", [1, 2])
def test_page_is_answered_before_the_books_that_came_first(programs, n_threads):
    """The books are cut to a length, so each is read to its end. Where the machine lets them be read before the page
    is there, it is tried again."""
    worker = worker_with(programs, "--tokenizer-threads", n_threads)
    book = PAGE * ((1 if SANITIZER else 3) * MIB // len(PAGE))
    books = json.dumps({"prompt": book, "max_tokens": 1, "truncate_prompt_tokens": 20}).encode()
    page = {"prompt": PAGE, "max_tokens": 1}

    def ask_all(n_books):
        order, lock = [], threading.Lock()

        def ask(name, body):
            answer = http(worker.url + "/v1/completions", body)
            with lock:
                order.append(name)
            assert answer.code == 200, answer.body

        before = worker.metric("incipit_tokenizer_slices_total")
        asking = [threading.Thread(target=ask, args=("book", books)) for _ in range(n_books)]
        for thread in asking:
            thread.start()
        wait_for(lambda: worker.metric("incipit_tokenizer_slices_total") > before, "a book is being read")
        wait_for(lambda: worker.metric("incipit_tokenizer_queue_texts") > 0 or len(order) == n_books, "another waits")
        ask("page", page)
        waiting = worker.metric("incipit_tokenizer_queue_texts") > 0
        for thread in asking:
            thread.join()
        return order, waiting

    while True:
        order, waiting = ask_all(4)
        if waiting:
            break
    assert order.index("page") <= 2 and order[-1] == "book"
    assert worker.metric("incipit_tokenizer_wait_seconds_count") >= 5
    assert worker.metric("incipit_tokenizer_queue_texts") == worker.metric("incipit_tokenizer_queue_bytes") == 0


def test_texts_beyond_the_queue_are_answered_503(programs):
    worker = worker_with(programs, "--tokenizer-threads", 1, "--tokenizer-queue-bytes", "1KiB")
    book = json.dumps({"prompt": PAGE * (1 * MIB // len(PAGE)), "max_tokens": 1, "truncate_prompt_tokens": 20}).encode()
    answers = []

    def some_were_refused():
        asking = [threading.Thread(target=lambda: answers.append(http(worker.url + "/v1/completions", book))) for _ in range(8)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        return any(a.code == 503 for a in answers)

    wait_for(some_were_refused, "a text that found the queue full")
    refused = [a for a in answers if a.code != 200]
    assert all(a.code == 503 and a.headers["retry-after"] == "1" for a in refused)
    assert "--tokenizer-queue-bytes" in refused[0].json["error"]["message"]
    assert worker.metric("incipit_tokenizer_refused_total", reason="queue") == len(refused)
    assert any(a.code == 200 for a in answers)
