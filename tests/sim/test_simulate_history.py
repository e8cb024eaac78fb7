"""An agent that listens with history on simulated machines gets each event once, in order, whatever goes wrong."""

from stigmergy import Agent, Effects, Event, Fleet, Publish, evolve, field, react
from stigmergy.sim import ALL, World, simulate

POSTS = 4
LISTENER = f"Post/{POSTS}"


class Seen(Event):
    number: int


class Noted(Event):
    by: str
    count: int


class Post(Agent):
    seen: int = 0
    heard: dict[str, int] = field(default_factory=dict)
    wrong: int = 0

    @evolve
    def saw(self, event: Seen) -> None:
        self.seen += 1

    @react
    def publish(self, event: Seen) -> Effects:
        yield Publish("notes", Noted(by=self.address, count=self.seen))

    @evolve
    def hears(self, event: Noted) -> None:
        self.wrong += event.count != self.heard.get(event.by, 0) + 1
        self.heard = {**self.heard, event.by: event.count}


posts = Fleet("posts", agents=[Post])
posts.listen("Post/+/notes", to=LISTENER, history="all")


@simulate(posts, agents=POSTS, nodes=POSTS, seeds=3, faults=ALL, for_s=15.0)
def test_each_event_arrives_once_and_in_order_whatever_goes_wrong(world: World) -> None:
    numbers = iter(range(1, 1_000_000))
    world.each(0.5, lambda post: world.observe(post, Seen(number=next(numbers))))
    # A post whose journal was replaced by an empty one counts from the beginning again.
    world.always(lambda: sum(post.wrong for post in world.states(Post)) <= len(world.replaced()))
    world.eventually(lambda: is_complete(world), 110)


def is_complete(world: World) -> bool:
    states = {post.address: post for post in world.states(Post)}
    heard = states[LISTENER].heard if LISTENER in states else {}
    return heard == {address: post.seen for address, post in states.items() if post.seen}
