"""The plugin of vLLM changes nothing unless it is asked to, and says what it cannot use."""

import logging
import os

from vllm.platforms import current_platform

from switchml import vllm

platform = type(current_platform)
said = []


class Heard(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


vllm.log.addHandler(Heard())
vllm.log.setLevel(logging.INFO)


def registered(**variables):
    """The backend that vLLM names after that, and what the log says."""
    said.clear()
    for name in ("SWITCHML_VLLM", "SWITCHML_AGGREGATOR", "VLLM_DISTRIBUTED_USE_SPLIT_GROUP"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    vllm.register()
    return platform.dist_backend, "".join(said)


assert registered() == ("gloo", "")
assert registered(SWITCHML_VLLM="0") == ("gloo", "")
try:
    registered(SWITCHML_VLLM="yes")
except ValueError as error:
    assert str(error) == "SWITCHML_VLLM is 'yes'; set it to 1, or leave it out"
else:
    raise AssertionError("it takes any value")
backend, text = registered(SWITCHML_VLLM="1", VLLM_DISTRIBUTED_USE_SPLIT_GROUP="1")
assert backend == "gloo" and "VLLM_DISTRIBUTED_USE_SPLIT_GROUP=1 makes groups" in text, text
# A vLLM in which that attribute means something else.
platform.dist_backend = "another"
backend, text = registered(SWITCHML_VLLM="1")
assert backend == "another" and "is too old or too new" in text and "'another'" in text, text
platform.dist_backend = "gloo"
# Plugins may be loaded more than once.
for _ in range(2):
    backend, text = registered(SWITCHML_VLLM="1", SWITCHML_AGGREGATOR="switch")
    assert backend == "switchml" and "(aggregator switch)" in text, text
assert "(aggregator: that of rank 0, or none)" in registered(SWITCHML_VLLM="1")[1]
print("all is said", flush=True)
