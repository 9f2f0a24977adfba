"""A trained team behind an endpoint: each role is a model, and answers what it is asked. Nothing is recorded."""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence

from coachrl.errors import ContextOverflow
from coachrl.gateway.calls import Call, CallError, Reply, UnknownModel, WrongToken
from coachrl.gateway.conversation_tokens import Conversations, read_reply, with_own_ids
from coachrl.gateway.external import LiteLLMProviders
from coachrl.gateway.growing import told_as_it_grows
from coachrl.pipelines.generation import Generator, reply_text, stopped_at
from coachrl.pipelines.team.team import together
from coachrl.pipelines.team.trajectory import ReadPrompt, action_of
from coachrl.seeding import derive_seed
from coachrl.types import Role, SamplingParams

_GREEDY_BELOW = 1e-3
"""Of temperatures: what divides logits by less leaves the range of float32, and draws the most likely token anyway."""


class ServedTeam:
    """`Answerer` of a team's roles.

    Args:
        roles: who may be asked, by name.
        generator: draws the replies of those with weights of ours.
        providers: answer for the external ones.
        sampling: how replies are drawn where a call does not say.
        key: what clients must give as their API key; empty lets everybody in.
    """

    def __init__(
        self,
        roles: Iterable[Role],
        generator: Generator,
        providers: LiteLLMProviders,
        sampling: SamplingParams,
        key: str = "",
    ) -> None:
        self._roles = {role.name: role for role in roles}
        self._generator, self._providers = generator, providers
        self._sampling, self._key = sampling, key
        self._conversations = Conversations()

    def models(self, token: str) -> Sequence[str]:
        """Raises WrongToken."""
        if self._key and not hmac.compare_digest(token.encode(), self._key.encode()):
            raise WrongToken("the API key must be the one that this server was started with")
        return tuple(self._roles)

    async def answer(self, call: Call, token: str) -> Sequence[Reply]:
        """See `Answerer`."""
        names = self.models(token)
        if call.role not in self._roles:
            raise UnknownModel(call.role, names)
        role = self._roles[call.role]
        given: Counter[str] = Counter()
        if role.external:
            return [with_own_ids(reply, given) for reply in await self._providers.complete(call)]
        seed = secrets.randbits(63) if call.seed is None else call.seed
        prompt = self._conversations.prompt(call, self._generator.tokenizer(role.policy), role.thinking)
        draws = (self._draw(role, call, prompt, place, derive_seed(seed, place)) for place in range(call.n))
        return [with_own_ids(reply, given) for reply in await together(draws)]

    def refused(self, error: CallError, token: str) -> None:
        """See `Answerer`."""

    async def _draw(self, role: Role, call: Call, prompt: ReadPrompt, place: int, seed: int) -> Reply:
        tokenizer = self._generator.tokenizer(role.policy)
        length, context = len(prompt.ids), tokenizer.context_length
        if length >= context:
            raise ContextOverflow(
                f"the conversation has {length} tokens, and {role.name}'s context is {context} tokens"
            )
        usual = self._sampling
        temperature = usual.temperature if call.temperature is None else call.temperature
        sampling = SamplingParams(
            max_new_tokens=min(call.max_tokens or role.max_new_tokens, context - length),
            temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
            top_p=usual.top_p if call.top_p is None else call.top_p,
            seed=seed,
        )
        with told_as_it_grows(call, place, tokenizer, prompt):
            drawn = await self._generator.generate(role.policy, prompt.ids, sampling)
        drawn = stopped_at(drawn, tokenizer, call.stop)
        text = reply_text(tokenizer, prompt.ids, drawn.token_ids, prompt.opening)
        reply = read_reply(action_of(role, 0, prompt, drawn, text), call, tokenizer)
        self._conversations.remember(call, reply, prompt.ids)
        return reply
