"""The process in which chat templates are rendered: run by its path, it imports jinja2 and nothing of ours.

It sets up jinja2 as transformers does (`utils/chat_template_utils.py`, 5.17: the immutable sandbox, `loopcontrols`, the
`generation` tag, `tojson`, `raise_exception`, `strftime_now`); importing that module takes ten times as long as this.

Requests come by standard input and answers go to standard output, each after its length: a request is
`(number, text, output, variables)` of `marshal`, whose `text` is None where the template of that number is known; an
answer is the CPU seconds, a letter and UTF-8.
"""

import marshal
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

LENGTH = struct.Struct("<Q")
ANSWER = struct.Struct("<dcQ")
RENDERED, RAISED, MALFORMED, TOO_MUCH_MEMORY, TOO_LONG = b"T", b"E", b"S", b"M", b"L"
"""What became of a request; after the last two the process is to be replaced."""
KEPT = 64
"""Compiled templates."""


def main(libraries: str, cpu_seconds: int, memory_bytes: int) -> None:
    """Answer requests until standard input ends: then whoever started this process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipes
    sys.path.append(libraries)
    environment = _environment()
    limit_cpu = _limits(cpu_seconds, memory_bytes)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    compiled: dict[int, Any] = {}
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        number, text, output, variables = marshal.loads(requests.read(LENGTH.unpack(head)[0]))
        begun = time.process_time()
        limit_cpu(begun)
        kind, said = _answer(environment, compiled, number, text, output, variables)
        body = said.encode("utf-8", "surrogatepass")
        answers.write(ANSWER.pack(time.process_time() - begun, kind, len(body)) + body)
        answers.flush()


def _limits(cpu_seconds: int, memory_bytes: int) -> Callable[[float], None]:
    """Limit what the process may take; returns what begins a rendering's CPU time.

    macOS does not hold to that of memory: the parent's clock and the limit of the output remain.
    """
    for which, value in (("RLIMIT_CORE", 0), ("RLIMIT_AS", memory_bytes), ("RLIMIT_FSIZE", 0)):
        try:
            _, hard = resource.getrlimit(getattr(resource, which))
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(getattr(resource, which), (least, hard))
        except (AttributeError, OSError, ValueError):
            continue
    _, hard_cpu = resource.getrlimit(resource.RLIMIT_CPU)

    def limit_cpu(begun: float) -> None:
        # the limit is of the process and in whole seconds; beyond it SIGXCPU ends it, whatever it does
        wanted = int(begun) + cpu_seconds + 1
        soft = wanted if hard_cpu == resource.RLIM_INFINITY else min(wanted, hard_cpu)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard_cpu))

    return limit_cpu


def _answer(
    environment: Any, compiled: dict[int, Any], number: int, text: str | None, output: int, variables: dict[str, Any]
) -> tuple[bytes, str]:
    import jinja2

    try:
        if text is not None:
            if len(compiled) == KEPT:
                compiled.clear()
            compiled[number] = environment.from_string(text)
        pieces, length = [], 0
        for piece in compiled[number].generate(**variables):
            length += len(piece)
            if length > output:
                return TOO_LONG, ""
            pieces.append(piece)
        return RENDERED, "".join(pieces).encode().decode()  # raises on surrogates, which no tokenizer takes
    except MemoryError:
        return TOO_MUCH_MEMORY, ""
    except jinja2.TemplateSyntaxError as error:
        return MALFORMED, f"{_words(error)} (line {error.lineno})"
    except Exception as error:  # a template raises whatever it likes
        return RAISED, _words(error)


def _words(error: Exception) -> str:
    said = str(error)[:2000] or type(error).__name__
    plain = type(error).__name__ in ("TemplateError", "TemplateSyntaxError")  # `raise_exception`: the template's words
    return said if plain else f"{type(error).__name__}: {said}"


def _environment() -> Any:
    import json
    from datetime import datetime

    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`, whose body is written as it is: which tokens are the assistant's is not asked here."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

        def _written(self, caller: Callable[[], str]) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format: str) -> str:
        return datetime.now().strftime(format)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
