"""Twenty English words of two senses, two everyday sentences for each sense, and how many a model tells apart.

    bank    We sat on the bank of the river.      He put his money in the bank.

The sentences were written for this table. A word is told apart at a place of the residual stream where its vectors are
nearer between sentences of one sense, on the mean, than between sentences of two.
"""

from typing import Any

from torch import Tensor

from regard.lens import context_similarity

HOMOGRAPHS = {
    "bank": (("We sat on the bank of the river.", "The boat was tied to the bank of the lake."),
             ("He put his money in the bank.", "She works for a bank and lends money.")),
    "bat": (("A bat flew out of the dark cave.", "The bat sleeps in the tree all day."),
            ("He hit the ball with a bat.", "She bought a new bat and a ball for the game.")),
    "watch": (("My watch is five minutes slow.", "He looked at the watch on his arm."),
              ("We watch television every evening.", "They like to watch the birds.")),
    "light": (("Please turn off the light.", "There was no light in the room."),
              ("This box is very light.", "My new coat is light and warm.")),
    "fly": (("There is a fly in my soup.", "A fly sat down on the bread."),
            ("Birds fly over the house.", "We will fly to London tomorrow.")),
    "match": (("He lit the fire with a match.", "She took a match and lit a candle."),
              ("Our team won the match yesterday.", "We watched the football match together.")),
    "ring": (("He gave her a gold ring.", "She wears a ring on her finger."),
             ("I heard the phone ring twice.", "Did the bells ring this morning?")),
    "right": (("Turn right at the corner.", "He writes with his right hand."),
              ("I think you are right.", "That is not the right answer.")),
    "left": (("Turn left after the church.", "She broke her left arm."),
             ("He left the house early.", "The train left an hour ago.")),
    "kind": (("She is kind to animals.", "It was very kind of you to help me."),
             ("What kind of music do you like?", "I have never seen this kind of flower.")),
    "mean": (("What does this word mean?", "I did not mean to hurt you."),
             ("Do not be mean to your sister.", "He is a mean old man.")),
    "rock": (("He threw a rock into the water.", "The house is built on rock."),
             ("She plays in a rock band.", "They listen to loud rock music.")),
    "spring": (("The flowers bloom in spring.", "We will be married next spring."),
               ("We drank clear water from the spring.", "The water of this spring is hot.")),
    "letter": (("I wrote a letter to my mother.", "He has not answered my letter."),
               ("The word begins with a capital letter.", "The last letter of the alphabet is Z.")),
    "cold": (("The water is too cold.", "It was a cold winter night."),
             ("I caught a cold last week.", "She has a bad cold and a fever.")),
    "play": (("The children play in the garden.", "We play tennis on Sundays."),
             ("She wrote a play for the theater.", "The actors of the play were good.")),
    "train": (("The train arrives at six.", "He missed the last train home."),
              ("They train hard for the race.", "We train our dog every day.")),
    "change": (("I want to change my life.", "You cannot change the past."),
               ("Keep the change, driver.", "He gave me my change in coins.")),
    "plant": (("This plant needs more water.", "She put the plant near the window."),
              ("He works in a power plant.", "The car plant has five hundred workers.")),
    "second": (("This is my second cup of coffee.", "She won the second prize."),
               ("Wait a second, please.", "It only takes a second to do it.")),
}  # fmt: skip


def separate_senses(model: Any, word: str) -> Tensor:
    """At each place whether the mean cosine of a word within its senses is above that across them: (places,) bool."""
    one, other = HOMOGRAPHS[word]
    cosine = context_similarity(model, [*one, *other], word).cosine  # (places, 4, 4)
    within, across = (cosine[:, 0, 1] + cosine[:, 2, 3]) / 2, cosine[:, :2, 2:].mean((1, 2))
    return within > across + 1e-6  # where no context has come in all cosines are 1, and none is above another


def count_separated(model: Any) -> Tensor:
    """At each place for how many of the words: (places,)."""
    return sum(separate_senses(model, word).long() for word in HOMOGRAPHS)
