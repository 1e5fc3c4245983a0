"""Owns the `midstream` command's surface. Loads nothing heavy before a command needs it: `--help` is instant."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from midstream.cli import btif
from midstream.cli.options import with_config_options
from midstream.config import Config, load_config
from midstream.errors import MidstreamError

app = typer.Typer(
    name="midstream",
    help="A streaming LLM inference server that runs a tool before its call has been fully decoded.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(btif.app, name="btif")


def serve(config_file: Path | None, overrides: dict[str, Any]) -> None:
    """Start the server. Options come from here, then the environment (MIDSTREAM_PORT), then --config."""
    import asyncio

    import uvloop

    from midstream.cli.compose import serve as run_server
    from midstream.telemetry.logs import configure_logs

    try:
        config = load_config(config_file, overrides)
        configure_logs(config.log_level, as_json=config.log_json)
        sys.path.insert(0, "")  # tools of the operator's own lie where the server is started
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_server(config, lambda port: _say_ready(config, port)))
    except MidstreamError as error:
        _fail(error)


app.command("serve")(with_config_options(serve))


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="The server's base URL.")] = "http://127.0.0.1:8000/v1",
    model: Annotated[str | None, typer.Option(help="Model name; the server's first by default.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Bearer key.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    tools: Annotated[str, typer.Option(help="Server tools, comma-separated; 'all' or 'none'.")] = "none",
    tool_choice: Annotated[str | None, typer.Option(help="auto, required, none or a tool's name.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for each event.")] = False,
) -> None:
    """Chat in the terminal with any OpenAI-compatible server; tool calls show as they are routed and run."""
    from midstream.cli.chat import run_chat

    options = {"temperature": temperature, "max_tokens": max_tokens}
    try:
        status = run_chat(
            url,
            model,
            api_key,
            system=system,
            server_tools=_tool_names(tools),
            tool_choice=tool_choice,
            options={name: value for name, value in options.items() if value is not None},
            as_json=as_json,
        )
    except MidstreamError as error:
        _fail(error)
    raise typer.Exit(status)


@app.command()
def models(as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False) -> None:
    """List the models that can be served: those that are here, and how to get the others."""
    import json
    from dataclasses import asdict

    from midstream.cli.models import as_lines, listed_models

    found = listed_models()
    typer.echo(json.dumps([asdict(model) for model in found]) if as_json else as_lines(found))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False) -> None:
    """Say what this machine has, and what that means for speed. Ends with 1 where something should be looked at."""
    import json

    from midstream.cli.doctor import as_lines, as_records, examine
    from midstream.telemetry.logs import configure_logs

    configure_logs("info", as_json=False)
    findings = examine()
    typer.echo(json.dumps(as_records(findings)) if as_json else as_lines(findings))
    raise typer.Exit(0 if all(finding.is_good for finding in findings) else 1)


@app.command()
def version() -> None:
    """Print the version."""
    from midstream import __version__

    typer.echo(__version__)


def _tool_names(tools: str) -> Any:
    if tools == "none":
        return None
    return "all" if tools == "all" else [name.strip() for name in tools.split(",")]


def _say_ready(config: Config, port: int) -> None:
    """What to try, on stderr: stdout is for data."""
    name = config.served_model_name or config.model
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    base = f"http://{host}:{port}"
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}], "stream": true}}'
    typer.echo(
        f"\nmidstream is ready on {base}\n\nTry:\n"
        f"  curl -N {base}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
        f"  {_own_command()} chat --url {base}/v1{_demo_tool(config)}\n",
        err=True,
    )


def _own_command() -> str:
    """How this program was called: it need not be on the PATH."""
    called = Path(sys.argv[0])
    if called.name != "midstream":
        return "midstream"
    return str(called.relative_to(Path.cwd())) if called.is_relative_to(Path.cwd()) else str(called)


def _demo_tool(config: Config) -> str:
    """The embedded model calls no tool by itself: the command names one."""
    return " --tools on_time_rate --tool-choice on_time_rate" if "demo" in config.tools else ""


def _fail(error: MidstreamError) -> None:
    typer.echo(f"midstream: {error.message}", err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
