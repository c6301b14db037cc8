"""Settings: where they come from, which wins, and what is said about wrong ones."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tokgauge.settings import (
    DURATION_BUCKETS,
    Engine,
    Settings,
    SettingsError,
    flag_name,
    load_settings,
    option_fields,
)

pytestmark = pytest.mark.socketless

URL = "http://127.0.0.1:8000"


def load(
    tmp_path: Path, toml: str | None = None, env: dict[str, str] | None = None, **flags: object
) -> Settings:
    config = None
    if toml is not None:
        config = tmp_path / "tokgauge.toml"
        config.write_text(toml)
    return load_settings(config, env or {}, flags)


def refusal(
    tmp_path: Path, toml: str | None = None, env: dict[str, str] | None = None, **flags: object
) -> str:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, toml, env, **flags)
    return str(caught.value)


# where values come from


def test_only_the_engine_has_to_be_set(tmp_path: Path) -> None:
    settings = load(tmp_path, upstream=URL)
    assert settings.engine.upstream == URL
    assert settings == Settings(engines=[{"upstream": URL}])
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8080, 1)


@pytest.mark.parametrize("where", ["file", "environment", "flag"])
def test_each_source_alone(tmp_path: Path, where: str) -> None:
    toml = f'upstream = "{URL}"\nport = 1234' if where == "file" else None
    env = {"TOKGAUGE_UPSTREAM": URL, "TOKGAUGE_PORT": "1234"} if where == "environment" else {}
    flags = {"upstream": URL, "port": "1234"} if where == "flag" else {}
    assert load(tmp_path, toml, env, **flags).port == 1234


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    toml = f'upstream = "{URL}"\nport = 1\nworkers = 2\ndrain_timeout = 3'
    env = {"TOKGAUGE_PORT": "10", "TOKGAUGE_WORKERS": "20"}
    settings = load(tmp_path, toml, env, port="100")
    assert (settings.port, settings.workers, settings.drain_timeout) == (100, 20, 3.0)


def test_an_engine_can_be_a_table_and_single_values_win_over_it(tmp_path: Path) -> None:
    toml = f'[[engines]]\nupstream = "{URL}"\nmodels = ["a"]\nupstream_host = "from-file"\n'
    settings = load(tmp_path, toml, {"TOKGAUGE_UPSTREAM_HOST": "from-env"}, models="b,c")
    assert settings.engine.upstream == URL
    assert settings.engine.upstream_host == "from-env"
    assert settings.engine.models == ("b", "c")


def test_lists_are_written_with_commas(tmp_path: Path) -> None:
    env = {"TOKGAUGE_DURATION_BUCKETS": "0.1, 1,10", "TOKGAUGE_MODELS": "org/a, b,"}
    settings = load(tmp_path, env=env, upstream=URL)
    assert settings.duration_buckets == (0.1, 1.0, 10.0)
    assert settings.engine.models == ("org/a", "b")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("true", True), ("1", True), ("yes", True), ("false", False), ("0", False), ("off", False)],
)
def test_switches_in_the_environment(tmp_path: Path, written: str, meant: bool) -> None:
    settings = load(tmp_path, env={"TOKGAUGE_INJECT_USAGE": written}, upstream=URL)
    assert settings.inject_usage is meant


def test_a_slash_at_the_end_of_the_address_does_not_count(tmp_path: Path) -> None:
    assert (
        load(tmp_path, upstream="http://gpu:8000/base/").engine.upstream == "http://gpu:8000/base"
    )


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    env = {"PATH": "/bin", "TOKGAUGES": "x", "PORT": "1", "TOKGAUGE_CONFIG": "/etc/tokgauge.toml"}
    assert load(tmp_path, env=env, upstream=URL).port == 8080


def test_service_links_of_kubernetes_are_no_settings(tmp_path: Path) -> None:
    env = {
        "TOKGAUGE_PORT": "tcp://10.0.0.7:8080",
        "TOKGAUGE_SERVICE_HOST": "10.0.0.7",
        "TOKGAUGE_SERVICE_PORT": "8080",
        "TOKGAUGE_SERVICE_PORT_HTTP": "8080",
        "TOKGAUGE_SERVICE_PORT_METRICS": "9090",
        "TOKGAUGE_PORT_8080_TCP": "tcp://10.0.0.7:8080",
        "TOKGAUGE_PORT_8080_TCP_PROTO": "tcp",
        "TOKGAUGE_PORT_8080_TCP_PORT": "8080",
        "TOKGAUGE_PORT_8080_TCP_ADDR": "10.0.0.7",
    }
    assert load(tmp_path, env=env, upstream=URL).port == 8080


def test_a_port_that_is_no_service_link_is_a_setting(tmp_path: Path) -> None:
    env = {"TOKGAUGE_PORT": "10.0.0.7:8080"}
    assert "TOKGAUGE_PORT" in refusal(tmp_path, env=env, upstream=URL)


# what is said about wrong ones


def test_a_missing_engine_is_named_with_an_example(tmp_path: Path) -> None:
    message = refusal(tmp_path)
    assert "upstream is not set" in message
    assert "--upstream http://127.0.0.1:8000" in message


def test_an_engine_table_without_address(tmp_path: Path) -> None:
    message = refusal(tmp_path, '[[engines]]\nmodels = ["a"]\n')
    assert "upstream" in message
    assert "not set" in message
    assert "tokgauge.toml" in message


PLACES = [
    ("file", "tokgauge.toml"),
    ("environment", "environment variable TOKGAUGE_"),
    ("flag", "flag --"),
]


@pytest.mark.parametrize(("where", "place"), PLACES)
@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("upstream", "localhost:8000", "http://127.0.0.1:8000"),
        ("upstream", "ftp://engine", "http://127.0.0.1:8000"),
        ("upstream", "http://", "http://127.0.0.1:8000"),
        ("upstream", "http://engine:99999", "http://127.0.0.1:8000"),
        ("upstream", "http://engine/?a=b", "no user, query or fragment"),
        ("upstream", "http://me:secret@engine", "no user, query or fragment"),
        ("port", "http", "integer"),
        ("port", "65536", "65535"),
        ("port", "-1", "0"),
        ("admin_port", "x", "integer"),
        ("workers", "0", "1"),
        ("workers", "1.5", "integer"),
        ("log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("connect_timeout", "0", "greater than 0"),
        ("connect_timeout", "nan", "finite"),
        ("stream_idle_timeout", "inf", "finite"),
        ("stream_idle_timeout", "10m", "number"),
        ("drain_delay", "-1", "greater than or equal to 0"),
        ("max_header_bytes", "1", "1024"),
        ("max_in_flight", "0", "1"),
        ("inject_usage", "perhaps", "boolean"),
        ("duration_buckets", "1,1", "each larger than the one before"),
        ("duration_buckets", "", "each larger than the one before"),
        ("duration_buckets", "1,two", "number"),
        ("tensor_parallel_size", "0", "1"),
        ("weights_bytes", "-1", "greater than 0"),
        ("engine_process", "(", "regular expression"),
        ("engine_pids", "-1", "greater than 0"),
        ("duration_buckets", "0.1,inf", "finite"),
        ("duration_buckets", "-1,1", "greater than 0"),
        ("upstream", "http://engine:8000/v1", "accepted: http://engine:8000 "),
        ("upstream", "http://engine:8000/v1/", "accepted: http://engine:8000 "),
        ("upstream", "https://engine/base/v1/chat/completions", "accepted: https://engine/base "),
        ("upstream", "http://an engine:8000", "http://127.0.0.1:8000"),
        ("upstream", "http://engine:8000/a b", "http://127.0.0.1:8000"),
        ("upstream", "http://[::1:8000", "http://127.0.0.1:8000"),
        ("upstream", f"http://{'a' * 64}.example:8000", "the name or address of a host"),
        ("upstream_host", "engine name", "a host with or without a port"),
        ("upstream_host", "engine/", "a host with or without a port"),
        ("upstream_host", "gr\u00fcn.example", "a host with or without a port"),
        ("api_key", "sk one", "printable ASCII without blanks"),
        ("api_key", "sk-\u2026", "printable ASCII without blanks"),
        ("host", "127.0.0.1 ::1", "127.0.0.1, ::1 or 0.0.0.0"),
        ("host", "127.0.0.1/8", "127.0.0.1, ::1 or 0.0.0.0"),
        ("host", "a" * 64, "the name or address of a host"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_place_and_what_is_accepted(
    tmp_path: Path, where: str, place: str, field: str, value: str, accepted: str
) -> None:
    given: dict[str, Any] = {"upstream": URL, field: value}
    if where == "file":
        toml = "\n".join(f'{name} = "{text}"' for name, text in given.items())
        message = refusal(tmp_path, toml)
    elif where == "environment":
        message = refusal(tmp_path, None, {f"TOKGAUGE_{k.upper()}": v for k, v in given.items()})
        place += field.upper()
    else:
        message = refusal(tmp_path, **given)
        place = f"flag {flag_name(field)}"
    assert field in message
    assert place in message
    assert accepted in message


TEXTS = (
    "upstream", "upstream_ca_file", "upstream_host", "api_key", "models", "gpu", "gpus", "host",
    "model_path", "kv_cache_dtype", "engine_process", "request_log", "log_level",
)  # fmt: skip


@pytest.mark.parametrize("where", ["file", "environment", "flag"])
@pytest.mark.parametrize(
    "inside", ["a\nb", "a\r\nX-Y: z", "a\tb", "a\x7fb", "a\u00a0b", "\u202eab"]
)
def test_a_control_character_inside_is_refused_wherever_it_stands(
    tmp_path: Path, where: str, inside: str
) -> None:
    for field in (*TEXTS, "port", "inject_usage", "connect_timeout", "duration_buckets"):
        value = f"http://{inside}" if field == "upstream" else inside
        given: dict[str, Any] = {"upstream": URL, field: value}
        if where == "file":
            lines = [f"{name} = {json.dumps(text)}" for name, text in given.items()]
            message = refusal(tmp_path, "\n".join(lines))
        elif where == "environment":
            message = refusal(
                tmp_path, None, {f"TOKGAUGE_{k.upper()}": v for k, v in given.items()}
            )
        else:
            message = refusal(tmp_path, **given)
        assert field in message
        assert "accepted: one line of printable characters" in message, field
        assert "\n    " in message or field == "api_key"
        assert inside not in message


@pytest.mark.parametrize(
    "around", [("", "\n"), ("", "\r\n"), (" ", " "), ("\ufeff", ""), ("\t", "")]
)
def test_what_was_pasted_too_much_around_a_value_does_not_count(
    tmp_path: Path, around: tuple[str, str]
) -> None:
    plain: dict[str, Any] = {
        "upstream": URL, "upstream_host": "engine:1", "api_key": "sk-1", "models": "a,b",
        "gpu": "A6000", "gpus": "0,1", "host": "::1", "model_path": "/models/a b", "port": "1234",
        "kv_cache_dtype": "fp8", "engine_process": "a.*b", "request_log": "-", "workers": "2",
        "log_level": "info", "inject_usage": "false", "connect_timeout": "1.5", "otel": "true",
        "upstream_ca_file": "/etc/ca.pem", "duration_buckets": "1,2", "weights_bytes": "1e9",
    }  # fmt: skip
    before, after = around
    pasted: dict[str, Any] = {name: f"{before}{value}{after}" for name, value in plain.items()}
    expected = load(tmp_path, **plain)
    assert load(tmp_path, **pasted) == expected
    assert load(tmp_path, env={f"TOKGAUGE_{k.upper()}": v for k, v in pasted.items()}) == expected
    lines = [f"{name} = {json.dumps(value)}" for name, value in pasted.items()]
    assert load(tmp_path, "\n".join(lines)) == expected


def test_lists_in_the_file_are_trimmed_part_by_part(tmp_path: Path) -> None:
    settings = load(tmp_path, f'upstream = "{URL}"\nmodels = ["a\\n", " b"]')
    assert settings.engine.models == ("a", "b")


@pytest.mark.parametrize("field", [field for field in TEXTS if field not in ("models", "gpus")])
@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_value_is_refused(tmp_path: Path, field: str, empty: str) -> None:
    message = refusal(tmp_path, env={"TOKGAUGE_UPSTREAM": URL, f"TOKGAUGE_{field.upper()}": empty})
    assert f"TOKGAUGE_{field.upper()}" in message
    assert "accepted: a value; leave the setting out for its default" in message


def test_brackets_around_an_address_to_listen_on_do_not_count(tmp_path: Path) -> None:
    assert load(tmp_path, upstream=URL, host="[::1]").host == "::1"


@pytest.mark.parametrize("path", ["/v1x", "/api", "/v10", "/xv1"])
def test_a_path_that_only_looks_like_v1_stays(tmp_path: Path, path: str) -> None:
    assert load(tmp_path, upstream=URL + path).engine.upstream == URL + path


def test_a_mark_at_the_beginning_of_the_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_bytes(b"\xef\xbb\xbf" + f'upstream = "{URL}"\r\nport = 1234\r\n'.encode())
    assert load_settings(path, {}, {}).port == 1234


def test_a_long_wrong_value_is_not_repeated_whole(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, upstream=URL, port="9" * 100_000)) < 1000


def test_variables_that_documents_name_are_settings() -> None:
    """Nothing tells people to set a variable that makes the proxy refuse to start."""
    root = Path(__file__).parent.parent
    ignoring = root / "proxy" / "tokgauge" / "settings" / "sources.py"  # names what it ignores
    places = ("README.md", "Dockerfile", "Makefile", "bench", "config", "deploy", "docs", "proxy")
    known = {f"TOKGAUGE_{name.upper()}" for name in option_fields()} | {"TOKGAUGE_CONFIG"}
    for path in (path for place in places for path in [root / place, *(root / place).rglob("*")]):
        if path.is_file() and path != ignoring:
            found = re.findall(rb"(?<!_)TOKGAUGE_[A-Z_]*[A-Z]\b", path.read_bytes())
            assert {variable.decode() for variable in found} <= known, path


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("stream_idle_timout = 3", "Did you mean stream_idle_timeout?"),
        ("Port = 3", "Did you mean port?"),
        ("entirely_different = 3", "Accepted: "),
        ("[proxy]\nport = 3", "proxy"),
    ],
)
def test_an_unknown_name_in_the_file(tmp_path: Path, toml: str, expected: str) -> None:
    message = refusal(tmp_path, f'upstream = "{URL}"\n{toml}')
    assert "is not a setting" in message
    assert "tokgauge.toml" in message
    assert expected in message


def test_an_unknown_name_in_an_engine_table(tmp_path: Path) -> None:
    message = refusal(tmp_path, f'[[engines]]\nupstream = "{URL}"\napikey = "x"')
    assert "is not a setting" in message
    assert "Did you mean api_key?" in message


def test_an_unknown_variable(tmp_path: Path) -> None:
    message = refusal(tmp_path, env={"TOKGAUGE_UPSTREEM": URL})
    assert "TOKGAUGE_UPSTREEM is not a setting" in message
    assert "Did you mean TOKGAUGE_UPSTREAM?" in message


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, "workers = 0", {"TOKGAUGE_PORT": "x"}, upstream="nowhere")
    assert "workers" in message
    assert "TOKGAUGE_PORT" in message
    assert "--upstream" in message


def test_two_engines_are_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, f'[[engines]]\nupstream = "{URL}"\n' * 2)
    assert "exactly one engine" in message


@pytest.mark.parametrize("engines", ["[]", '"http://127.0.0.1:8000"', "3", "[3]"])
def test_engines_that_are_no_tables(tmp_path: Path, engines: str) -> None:
    assert "engines" in refusal(tmp_path, f"engines = {engines}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "absent.toml"
    with pytest.raises(SettingsError, match=r"cannot read the settings file .*absent\.toml"):
        load_settings(path, {}, {})


@pytest.mark.parametrize("content", [b"port = ", b"port = 1\nport = 2", b"\xff\xfe"])
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"broken\.toml is not valid TOML"):
        load_settings(path, {}, {})


def test_a_directory_as_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        load_settings(tmp_path, {}, {})


# secrets

SECRET = "sk-very-secret"


def test_the_key_is_never_shown(tmp_path: Path) -> None:
    settings = load(tmp_path, env={"TOKGAUGE_API_KEY": SECRET}, upstream=URL)
    assert settings.engine.api_key is not None
    assert settings.engine.api_key.get_secret_value() == SECRET
    for shown in (repr(settings), str(settings), settings.model_dump_json(), f"{settings.engine}"):
        assert SECRET not in shown


@pytest.mark.parametrize(
    "toml",
    [
        f'api_key = ["{SECRET}"]',
        f'[[engines]]\nupstream = "{URL}"\napi_key = ["{SECRET}"]',
        f'[[engines]]\napi_key = "{SECRET}"',
        f'engines = ["{SECRET}"]',
        f'upstream = "http://user:{SECRET}@engine"',
    ],
)
def test_a_refusal_does_not_show_the_key(tmp_path: Path, toml: str) -> None:
    if "engines" not in toml and "upstream" not in toml:
        toml = f'upstream = "{URL}"\n{toml}'
    assert SECRET not in refusal(tmp_path, toml)


# the file that documents them

EXAMPLE = Path(__file__).parent.parent / "config" / "tokgauge.toml"


def test_the_settings_file_loads_and_changes_nothing() -> None:
    assert load_settings(EXAMPLE, {}, {}) == Settings(engines=[{"upstream": URL}])


def test_the_settings_file_has_every_setting_with_its_default(tmp_path: Path) -> None:
    lines = EXAMPLE.read_text().splitlines()
    everything = [line.removeprefix("#") if not line.startswith("# ") else "" for line in lines]
    written = tomllib.loads("\n".join(everything))
    assert written.keys() == option_fields().keys()
    settings = load(tmp_path, "\n".join(everything))
    for fields, model in (
        (Settings.model_fields, settings),
        (Engine.model_fields, settings.engine),
    ):
        for name, info in fields.items():
            if info.default is not None and not info.is_required():
                assert getattr(model, name) == info.default, name
    assert settings.duration_buckets == DURATION_BUCKETS


@pytest.mark.parametrize(
    ("field", "text", "number"),
    [
        ("weights_bytes", "14.14GB", 14.14e9),
        ("weights_bytes", "13.2 GiB", 13.2 * 2**30),
        ("kv_bytes_per_token", "56kib", 57_344),
        ("gpu_bandwidth", "768 GB/s", 768e9),
        ("gpu_bandwidth", "768e9", 768e9),
        ("gpu_flops", "154.8T", 154.8e12),
        ("matmul_parameters", "7.07B", 7.07e9),
    ],
)
def test_quantities_read_as_in_the_commands(field: str, text: str, number: float) -> None:
    settings = load_settings(None, {}, {"upstream": "http://e:1", field: text})
    assert getattr(settings.engine, field) == pytest.approx(number)


def test_a_quantity_with_a_wrong_unit_says_which_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'14.14GT' is not a number \(units: b, kb, mb, gb"):
        load_settings(None, {}, {"upstream": "http://e:1", "weights_bytes": "14.14GT"})
