"""Owns an engine's port that a test holds in its hands: commands go in, outputs are kept. No socket, no thread."""

from midstream.messages import Command, SequenceOutput, StepOutput, WatchEvent


class ListPort:
    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.outputs: list[SequenceOutput] = []
        self.num_waits = 0

    def receive(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def wait(self) -> None:
        self.num_waits += 1

    def send(self, output: StepOutput) -> None:
        self.outputs += output.outputs

    def events(self, request_id: int) -> list[WatchEvent]:
        return [event for output in self.outputs if output.request_id == request_id for event in output.events]
