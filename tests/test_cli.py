"""The command line as a process: help, versions, exit codes and messages."""

import re
import signal
import socket
from importlib.metadata import version
from pathlib import Path

import pytest
from tokgauge import __version__
from tokgauge.cli import main
from tokgauge.settings import flag_name, option_fields
from tokgauge.simulator.server import running_engine

from tests.support.process import run, serving

COMMANDS = ["serve", "demo", "simulate", "probe", "calibrate", "ceiling", "plan", "check"]
UPSTREAM = ("--upstream", "http://127.0.0.1:9")


def test_the_commands() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    listed = re.findall(r"^  (\w+)  ", ended.stdout.partition("Commands:")[2], re.MULTILINE)
    assert listed == COMMANDS
    assert run("-h").stdout == ended.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    ended = run(command, "--help")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"Usage: tokgauge {command}")
    assert not ended.stderr


def test_every_setting_is_a_flag_of_serve() -> None:
    text = run("serve", "--help").stdout
    for field in option_fields():
        assert re.search(rf"^  {flag_name(field)}\b", text, re.MULTILINE), field


def test_the_version() -> None:
    ended = run("--version")
    assert ended.stdout.strip() == f"tokgauge, version {__version__}"
    assert version("tokgauge") == __version__


def test_the_console_script_is_the_same_command() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="tokgauge")
    assert script.load() is main


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sevre"], "No such command 'sevre'. Did you mean 'serve'?"),
        (["xyz"], "No such command 'xyz'."),
        (["serve"], "upstream is not set"),
        (["serve", "--upstreem", "x"], "No such option"),
        (["serve", "--upstream", "localhost:8000"], "flag --upstream"),
        (["serve", *UPSTREAM, "--port", "http"], "flag --port"),
        (["serve", *UPSTREAM, "--config", "/absent.toml"], "cannot read the settings file"),
        (["simulate", "--weights-bytes", "-1"], "weights_bytes must be above 0"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(arguments: list[str], expected: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout


def test_a_wrong_settings_file(tmp_path: Path) -> None:
    config = tmp_path / "tokgauge.toml"
    config.write_text('upstream = "http://127.0.0.1:9"\nport = "http"\nworkres = 2\n')
    for ended in (run("serve", "--config", str(config)), run("serve", TOKGAUGE_CONFIG=str(config))):
        assert ended.returncode == 2
        assert "port = 'http'" in ended.stderr
        assert "Did you mean workers?" in ended.stderr
        assert str(config) in ended.stderr.replace("\n", "")


def test_a_wrong_variable() -> None:
    ended = run("serve", *UPSTREAM, TOKGAUGE_WORKRES="2")
    assert ended.returncode == 2
    assert "TOKGAUGE_WORKRES" in ended.stderr
    assert "Did you mean TOKGAUGE_WORKERS?" in ended.stderr


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_port_in_use(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run("serve", *UPSTREAM, "--port", "0", flag, port)
    assert ended.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_address_that_is_not_ours() -> None:
    ended = run("serve", *UPSTREAM, "--host", "192.0.2.1", "--port", "0")
    assert ended.returncode == 3
    assert "cannot listen on 192.0.2.1:0" in ended.stderr


def test_serve_says_where_it_listens_and_for_which_engine() -> None:
    with running_engine() as engine, serving(engine) as proxy:
        assert f"tokgauge listens on http://127.0.0.1:{proxy.port}, engine {engine}" in proxy.text
        proxy.signal(signal.SIGINT)
        assert proxy.ended() == 0
        assert proxy.popen.stdout is not None
        assert proxy.popen.stdout.read() == "", "standard output belongs to the request log"


def test_settings_from_all_three_places(tmp_path: Path) -> None:
    config = tmp_path / "tokgauge.toml"
    with running_engine() as engine:
        config.write_text('upstream = "http://127.0.0.1:9"\nlog_level = "error"\n')
        with serving(engine, TOKGAUGE_CONFIG=str(config), TOKGAUGE_LOG_LEVEL="debug") as proxy:
            assert f"engine {engine}" in proxy.text
