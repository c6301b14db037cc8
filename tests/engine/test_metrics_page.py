"""The engine's own figures: real pages of vLLM, drifted names, several engines, broken pages."""

from __future__ import annotations

import math
import time
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.engine.metrics_page import EngineRates, EngineReading, between, read

pytestmark = pytest.mark.socketless

PAGES = Path(__file__).parent / "pages"
IDLE = (PAGES / "vllm_start.txt").read_bytes()
AFTER = (PAGES / "vllm_after.txt").read_bytes()
VALUES = [item.name for item in fields(EngineReading) if item.name not in ("at", "problem")]
RATES = [item.name for item in fields(EngineRates) if item.name not in ("seconds", "problem")]


def page(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def nothing_in(reading: EngineReading) -> bool:
    return all(getattr(reading, name) in (None, ()) for name in VALUES)


def cache_config(engine: str, *, blocks: int, dtype: str) -> str:
    return (
        f'vllm:cache_config_info{{engine="{engine}",num_gpu_blocks="{blocks}",block_size="16",'
        f'cache_dtype="{dtype}"}} 1'
    )


def counters(at: float, engine: str = "0", /, **values: float) -> EngineReading:
    """A vLLM page with these counters."""
    names = {
        "steps": "vllm:iteration_tokens_total_count",
        "generated": "vllm:generation_tokens_total",
        "prompt": "vllm:prompt_tokens_total",
        "hits": "vllm:prefix_cache_hits_total",
        "preempted": "vllm:num_preemptions_total",
        "drafts": "vllm:spec_decode_num_drafts_total",
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
        "read": "vllm:estimated_read_bytes_per_gpu_total",
    }
    start = values.pop("start", None)
    lines = [
        f'{names[name]}{{engine="{engine}",model_name="m"}} {value}'
        for name, value in values.items()
    ]
    if start is not None:
        lines.append(f"process_start_time_seconds {start}")
    return read(page(*lines), at)


class TestRealPages:
    def test_after_traffic(self) -> None:
        reading = read(AFTER, 12.5)
        assert reading == EngineReading(
            at=12.5,
            kind="vllm",
            models=("qwen",),
            engines=1,
            started_at=1.79602196021e09,
            running=0,
            waiting=0,
            kv_cache_usage=0.0,
            context_tokens_per_engine=0.0,
            kv_cache_dtype="auto",
            preemptions_total=0,
            iterations_total=1789,
            prompt_tokens_total=1002,
            computed_prompt_tokens_total=1002,
            prefix_cache_hits_total=0,
            generation_tokens_total=14_770,
            # Not speculative, and --enable-mfu-metrics was off: the page says 0, which is no fact.
            spec_drafts_total=None,
            spec_accepted_total=None,
            queued_total=92,
            queue_seconds_sum=13.62521663598909,
            estimated_read_bytes_total=None,
        )

    def test_fresh_engine_has_zeros_that_are_true(self) -> None:
        reading = read(IDLE, 0.0)
        assert (reading.iterations_total, reading.generation_tokens_total) == (0, 0)
        assert reading.estimated_read_bytes_total == 0.0

    def test_other_process_means_restart(self) -> None:
        rates = between(read(IDLE, 0.0), read(AFTER, 10.0))
        assert rates == EngineRates(10.0, problem="the engine was restarted")

    def test_rates_over_the_whole_run(self) -> None:
        start = read(IDLE.replace(b"1.7960215097e+09", b"1.79602196021e+09"), 0.0)
        rates = between(start, read(AFTER, 100.0))
        assert rates.steps_per_second_per_engine == pytest.approx(17.89)
        assert rates.generation_tokens_per_second == pytest.approx(147.7)
        assert rates.prompt_tokens_per_second == pytest.approx(10.02)
        assert rates.computed_prompt_tokens_per_second == pytest.approx(10.02)
        assert rates.preemptions_per_second == 0.0
        assert rates.tokens_per_step is None
        assert rates.queued == 92
        assert rates.queue_seconds == pytest.approx(0.148, abs=0.001)
        assert rates.read_bytes_per_second_per_gpu is None

    def test_cheap_enough_for_the_event_loop(self) -> None:
        best = math.inf
        for _ in range(5):
            start = time.process_time()
            read(AFTER, 0.0)
            best = min(best, time.process_time() - start)
        # About 2 ms; all of the page through the parser takes 35 ms.
        assert best < 0.020


class TestNames:
    @pytest.mark.parametrize(
        ("line", "field", "value"),
        [
            ('vllm:gpu_cache_usage_perc{model_name="m"} 0.25', "kv_cache_usage", 0.25),
            ('vllm:num_preemptions{engine="0"} 3', "preemptions_total", 3),
            ('vllm:num_preemptions_total{engine="0"} 3', "preemptions_total", 3),
            ('vllm:generation_tokens{engine="0"} 7.0', "generation_tokens_total", 7),
            ("sglang:num_running_reqs 5", "running", 5),
            ("sglang:num_queue_reqs 6", "waiting", 6),
            ('sglang:token_usage{model_name="m",tp_rank="0"} 0.28', "kv_cache_usage", 0.28),
            (
                "sglang:token_usage 0.5\nsglang:max_total_num_tokens 471258",
                "context_tokens_per_engine",
                235_629,
            ),
            ("llamacpp:requests_processing 1", "running", 1),
            ("llamacpp:requests_deferred 2", "waiting", 2),
            ("llamacpp:n_decode_total 332", "iterations_total", 332),
            ("llamacpp:tokens_predicted_total 350", "generation_tokens_total", 350),
        ],
    )
    def test_each_engine_and_version(self, line: str, field: str, value: float) -> None:
        reading = read(page(line), 0.0)
        assert getattr(reading, field) == value
        assert reading.problem is None

    def test_old_and_new_name_side_by_side_count_once(self) -> None:
        text = page(
            'vllm:num_preemptions{engine="0"} 3', 'vllm:num_preemptions_total{engine="0"} 3'
        )
        assert read(text, 0.0).preemptions_total == 3

    def test_what_is_not_on_the_page_is_absent(self) -> None:
        reading = read(page("llamacpp:requests_processing 1"), 0.0)
        told = {name for name in VALUES if getattr(reading, name) not in (None, ())}
        assert told == {"kind", "engines", "running"}

    def test_type_lines_rename_nothing(self) -> None:
        text = page("# TYPE vllm:num_preemptions counter", "vllm:num_preemptions 3")
        assert read(text, 0.0).preemptions_total == 3

    def test_a_longer_name_is_another_metric(self) -> None:
        assert read(page("vllm:num_requests_running_max 9"), 0.0).running is None

    def test_openmetrics_end_and_windows_line_ends(self) -> None:
        assert read(b"vllm:num_requests_running 2\r\n# EOF\r\n", 0.0).running == 2

    @pytest.mark.parametrize(
        ("labels", "held"),
        [
            ('num_gpu_blocks="100",block_size="16"', 400),
            ('num_gpu_blocks="100",block_size="16",kv_cache_size_tokens="800"', 200),
            ('num_gpu_blocks="100",block_size="16",kv_cache_size_tokens="None"', 400),
            ('num_gpu_blocks="None",block_size="16"', None),
            ('block_size="16"', None),
            ('num_gpu_blocks="0",block_size="16"', None),
        ],
    )
    def test_context(self, labels: str, held: int | None) -> None:
        text = page("vllm:kv_cache_usage_perc 0.25", f"vllm:cache_config_info{{{labels}}} 1.0")
        assert read(text, 0.0).context_tokens_per_engine == held

    def test_label_values_with_braces_quotes_and_separators(self) -> None:
        text = page('vllm:num_requests_running{model_name="a } \\"b\\" {\u2028# c"} 4')
        reading = read(text, 0.0)
        assert reading.running == 4
        assert reading.models == ('a } "b" {\u2028# c',)


class TestSeveral:
    def two(self, name: str, first: float, second: float) -> list[str]:
        return [
            f'vllm:{name}{{engine="{engine}",model_name="m"}} {value}'
            for engine, value in (("0", first), ("1", second))
        ]

    def test_data_parallel_engines(self) -> None:
        reading = read(
            page(
                *self.two("num_requests_running", 3, 4),
                *self.two("kv_cache_usage_perc", 0.2, 0.9),
                *self.two("iteration_tokens_total_count", 10, 20),
                cache_config("0", blocks=10, dtype="fp8"),
                cache_config("1", blocks=20, dtype="auto"),
            ),
            0.0,
        )
        assert reading.engines == 2
        assert reading.running == 7
        assert reading.kv_cache_usage == 0.9
        assert reading.iterations_total == 30
        assert reading.context_tokens_per_engine == pytest.approx((0.2 * 160 + 0.9 * 320) / 2)
        assert reading.kv_cache_dtype is None

    def test_a_sum_that_lacks_an_engine_is_absent(self) -> None:
        reading = read(
            page(
                *self.two("num_requests_running", 3, 4),
                *self.two("kv_cache_usage_perc", 0.2, 0.9),
                'vllm:num_requests_waiting{engine="0",model_name="m"} 2',
                'vllm:cache_config_info{engine="0",num_gpu_blocks="10",block_size="16"} 1',
            ),
            0.0,
        )
        assert reading.running == 7
        assert reading.waiting is None
        assert reading.context_tokens_per_engine is None

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1.5"])
    def test_a_sum_with_a_value_that_is_none(self, value: str) -> None:
        lines = self.two("num_requests_running", 3, 4)
        lines[1] = lines[1].replace(" 4", f" {value}")
        assert read(page(*lines), 0.0).running is None

    def test_cache_usage_above_one_is_no_ratio(self) -> None:
        assert read(page("vllm:kv_cache_usage_perc 37.5"), 0.0).kv_cache_usage is None

    def test_steps_of_two_engines(self) -> None:
        def steps(at: float, first: int, second: int, read_bytes: float) -> EngineReading:
            return read(
                page(
                    *self.two("iteration_tokens_total_count", first, second),
                    *self.two("estimated_read_bytes_per_gpu_total", read_bytes, read_bytes),
                ),
                at,
            )

        rates = between(steps(0.0, 10, 10, 1e9), steps(2.0, 110, 90, 5e9))
        assert rates.steps_per_second_per_engine == 45.0
        assert rates.read_bytes_per_second_per_gpu == 2e9

    def test_two_models_share_no_steps(self) -> None:
        reading = read(
            page(
                'vllm:num_requests_running{model_name="a"} 1',
                'vllm:num_requests_running{model_name="b"} 2',
                'vllm:iteration_tokens_total_count{model_name="a"} 10',
                'vllm:iteration_tokens_total_count{model_name="b"} 20',
                'vllm:kv_cache_usage_perc{model_name="a"} 0.1',
                'vllm:kv_cache_usage_perc{model_name="b"} 0.1',
                'vllm:cache_config_info{num_gpu_blocks="10",block_size="16"} 1',
            ),
            0.0,
        )
        assert reading.models == ("a", "b")
        assert reading.running == 3
        assert reading.iterations_total is None
        assert reading.context_tokens_per_engine is None

    def test_tensor_parallel_copies_count_once(self) -> None:
        text = page(
            'sglang:num_running_reqs{model_name="m",tp_rank="0"} 3',
            'sglang:num_running_reqs{model_name="m",tp_rank="1"} 3',
            'sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1',
            'sglang:num_queue_reqs{model_name="m",tp_rank="1"} 2',
        )
        reading = read(text, 0.0)
        assert reading.running == 3
        assert reading.waiting is None

    def test_totals_of_the_server_beside_values_of_its_engines(self) -> None:
        text = page(
            'sglang:num_running_reqs{model_name="m",dp_rank="0"} 3',
            'sglang:num_running_reqs{model_name="m",dp_rank="1"} 4',
            'sglang:generation_tokens_total{model_name="m"} 500',
        )
        reading = read(text, 0.0)
        assert (reading.running, reading.generation_tokens_total) == (7, 500)
        assert reading.engines == 2

    def test_two_kinds_of_engine_on_one_page(self) -> None:
        reading = read(page("vllm:num_requests_running 1", "sglang:num_running_reqs 2"), 0.0)
        assert reading.problem == "metrics of several engines: sglang, vllm"
        assert nothing_in(reading)


class TestBroken:
    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"\n",
            b"<html><body>502 Bad Gateway</body></html>\n",
            b'{"detail":"Not Found"}\n',
            b"\x1f\x8b\x08\x00\xff\xfe\n",
            b"vllm:num_requests_running\n",
            b"vllm:num_requests_running abc\n",
            b'vllm:num_requests_running{engine="0" 1\n',
            b'vllm:num_requests_running{engine="0}" 1\n',
            b"vllm:num_requests_running{\n",
            b"vllm:num_requests_running}\n",
            b"vllm:num_requests_running{engine=0} 1\n",
            b"vllm:num_requests_running{" + b'a="b",' * 5000 + b"} 1\n",
        ],
    )
    def test_malformed(self, text: bytes) -> None:
        reading = read(text, 3.0)
        assert reading.problem
        assert reading.at == 3.0
        assert nothing_in(reading)

    def test_a_number_that_was_cut_off_is_not_believed(self) -> None:
        cut = AFTER[: AFTER.index(b"vllm:generation_tokens_total{") + 60]
        assert nothing_in(read(cut, 0.0))

    def test_a_broken_line_elsewhere_harms_nothing(self) -> None:
        assert read(page("{{{ broken", "vllm:num_requests_running 2"), 0.0).running == 2

    @settings(max_examples=150, deadline=None)
    @given(st.binary(max_size=200))
    def test_any_bytes(self, noise: bytes) -> None:
        read(noise + b"\n", 0.0)

    @settings(max_examples=300, deadline=None)
    @given(st.text(alphabet='{}="\\,#_ 1e.-+aN\t\u2028', max_size=40))
    def test_any_rest_of_a_line(self, rest: str) -> None:
        for name in ("vllm:num_requests_running", "vllm:cache_config_info"):
            read(f"{name}{rest}\n".encode(), 0.0)


class TestRates:
    def test_all(self) -> None:
        earlier = counters(
            10.0, steps=100, generated=1_000, prompt=4_000, preempted=1,
            drafts=50, accepted=100, read=1e12,
        )  # fmt: skip
        later = counters(
            20.0, steps=600, generated=3_000, prompt=4_500, preempted=6,
            drafts=150, accepted=300, read=8e12,
        )  # fmt: skip
        rates = between(earlier, later)
        assert rates.problem is None
        assert rates.steps_per_second_per_engine == 50.0
        assert rates.generation_tokens_per_second == 200.0
        assert rates.preemptions_per_second == 0.5
        assert rates.tokens_per_step == 3.0
        assert rates.read_bytes_per_second_per_gpu == 7e11
        assert rates.prompt_tokens_per_second == 50.0
        assert rates.computed_prompt_tokens_per_second is None, "the cache is not told"

    @pytest.mark.parametrize(
        "name", ["vllm:request_queue_time_seconds", "sglang:queue_time_seconds"]
    )
    def test_the_queue_is_the_mean_of_those_who_left_it(self, name: str) -> None:
        def reading(at: float, seconds: float, requests: int) -> EngineReading:
            return read(page(f"{name}_sum {seconds}", f"{name}_count {requests}"), at)

        rates = between(reading(10.0, 4.0, 10), reading(20.0, 49.5, 15))
        assert (rates.queued, rates.queue_seconds) == (5, 9.1)
        nobody = between(reading(10.0, 4.0, 10), reading(20.0, 4.0, 10))
        assert (nobody.queued, nobody.queue_seconds) == (0, None)
        assert between(reading(10.0, 4.0, 10), reading(20.0, 1.0, 2)).problem == (
            "the engine was restarted"
        )

    @pytest.mark.parametrize(("hits", "computed"), [(0, 50.0), (100, None)])
    def test_prompts_were_computed_where_no_cache_gave_any(
        self, hits: int, computed: float | None
    ) -> None:
        earlier = counters(10.0, steps=100, prompt=4_000, hits=0)
        rates = between(earlier, counters(20.0, steps=600, prompt=4_500, hits=hits))
        assert rates.prompt_tokens_per_second == 50.0
        assert rates.computed_prompt_tokens_per_second == computed

    def test_prompt_tokens_that_were_computed_are_told_by_source(self) -> None:
        def reading(at: float, computed: int, hit: int, external: int) -> EngineReading:
            by_source = {
                "local_compute": computed, "local_cache_hit": hit, "external_kv_transfer": external,
            }  # fmt: skip
            return read(
                page(
                    f'vllm:prompt_tokens_total{{engine="0"}} {computed + hit + external}',
                    f'vllm:prefix_cache_hits_total{{engine="0"}} {hit}',
                    *(
                        f'vllm:prompt_tokens_by_source_total{{engine="0",source="{name}"}} {count}'
                        for name, count in by_source.items()
                    ),
                ),
                at,
            )

        rates = between(reading(0.0, 100, 0, 0), reading(10.0, 400, 700, 50))
        assert rates.prompt_tokens_per_second == 105.0
        assert rates.computed_prompt_tokens_per_second == 30.0

    @pytest.mark.parametrize(
        "line", ["llamacpp:tokens_predicted_total {}", "sglang:generation_tokens_total {}"]
    )
    def test_tokens_that_are_counted_when_a_request_ends_have_no_rate(self, line: str) -> None:
        rates = between(read(page(line.format(100)), 0.0), read(page(line.format(900)), 10.0))
        assert rates.problem is None
        assert rates.generation_tokens_per_second is None

    def test_idle_engine(self) -> None:
        earlier, later = (
            counters(at, steps=5, generated=4, drafts=2, accepted=1) for at in (0.0, 5.0)
        )
        rates = between(earlier, later)
        assert rates.steps_per_second_per_engine == 0.0
        assert rates.generation_tokens_per_second == 0.0
        assert rates.prompt_tokens_per_second is None
        assert rates.tokens_per_step is None

    @pytest.mark.parametrize(
        ("earlier", "later", "why"),
        [
            (counters(0.0, steps=10), counters(1.0, steps=9), "restarted"),
            # One counter went back, the other has already overtaken its old value.
            (
                counters(0.0, steps=10, generated=5),
                counters(1.0, steps=50, generated=4),
                "restarted",
            ),
            (counters(0.0, steps=1, start=100), counters(1.0, steps=9, start=200), "restarted"),
            (counters(1.0, steps=1), counters(1.0, steps=9), "no time"),
            (counters(2.0, steps=1), counters(1.0, steps=9), "no time"),
            (counters(0.0, steps=1), read(b"", 1.0), "cut off"),
            (read(b"", 0.0), counters(1.0, steps=1), "cut off"),
            (counters(0.0, steps=1), read(page("llamacpp:n_decode_total 5"), 1.0), "different"),
        ],
    )
    def test_no_rates(self, earlier: EngineReading, later: EngineReading, why: str) -> None:
        rates = between(earlier, later)
        assert rates.problem is not None
        assert why in rates.problem
        assert all(getattr(rates, name) is None for name in RATES)

    def test_same_start_time_is_the_same_engine(self) -> None:
        rates = between(counters(0.0, steps=1, start=7), counters(2.0, steps=9, start=7))
        assert rates.steps_per_second_per_engine == 4.0

    def test_a_counter_that_appears_has_no_rate_yet(self) -> None:
        rates = between(counters(0.0, steps=1), counters(1.0, steps=2, preempted=5))
        assert rates.preemptions_per_second is None
        assert rates.steps_per_second_per_engine == 1.0

    @settings(max_examples=150, deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from(["steps", "hits", "generated", "drafts", "accepted"]),
            st.tuples(st.integers(0, 50), st.integers(0, 50)),
        )
    )
    def test_never_negative(self, values: dict[str, tuple[int, int]]) -> None:
        rates = between(
            counters(0.0, **{name: first for name, (first, _) in values.items()}),
            counters(1.0, **{name: second for name, (_, second) in values.items()}),
        )
        told = [getattr(rates, name) for name in RATES]
        assert all(value is None or value >= 0 for value in told)
