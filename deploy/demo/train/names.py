"""names.py - where the people in the tables get their names.

The model must compare token strings, not remember names, so names come from three sources:
  pool       real first and last names (FIRST, LAST); the names of the classic table are among them
  syllables  "Kalmoth", "Tofen": random syllables, nothing to remember
  letters    names drawn letter by letter from the pool's own three-letter statistics: they look real and
             mostly are not

FIRST_HELD_OUT and LAST_HELD_OUT are real names that training never sees (the letter source refuses to
produce them); the acceptance draws a third of its names there and from fresh syllables.

Pure Python, no imports from outside the standard library: the HTTP acceptance uses it too.
"""
import random

FIRST = """
John Jane Alice Bob Carol Dave Emma Frank Grace Henry Irene Jack Karen Leo Mia Noah Olivia Peter Quinn
Rachel Steve Tina Umar Victor Wendy Xavier Yara Zack Amy Ben
Aaron Abel Ada Adam Adele Agnes Aidan Alan Albert Alex Alfred Alma Amanda Amir Ana Andrew Angela Anita Anna
Anton April Archie Arjun Arthur Astrid Audrey Ava Barbara Basil Beatrice Bella Bernard Beth Bianca Bill Boris
Brenda Brian Bridget Bruno Caleb Camille Carl Carlos Carmen Cecil Celia Chad Charles Chen Chloe Chris Clara
Clive Colin Connie Cora Craig Curt Cyril Daisy Dana Daniel Daria David Dean Debra Della Denis Diana Diego
Dmitri Dolores Donald Dora Doris Doug Duncan Dylan Earl Edgar Edith Edwin Eileen Elaine Elena Eli Elliot Ellen
Elsa Emil Emily Enid Eric Erin Ernest Esther Ethan Eva Evan Fabian Faith Fatima Felix Fergus Fiona Flora Floyd
Fred Freya Gabriel Gail Gary Gemma George Gerald Gina Glenn Gloria Gordon Greg Greta Gus Hank Hannah Harold
Harry Hassan Hazel Heidi Helen Herman Hilda Hiro Holly Homer Howard Hugh Ian Ida Igor Ines Ingrid Iris Isaac
Isla Ivan Ivy Jacob Jake James Janet Jared Jasper Jean Jeff Jenny Jerry Jesse Jill Jim Joan Joel Jonas Jose
Joy Juan Judith Julia Jun June Kara Karl Kate Kay Keith Ken Kevin Kim Kirk Klaus Kurt Kyle Lana Lara Lars
Laura Lee Lena Leon Leroy Liam Lily Linda Lisa Lloyd Lois Lola Louis Lucas Lucy Luis Luke Lydia Lynn Mabel
Mae Marco Margo Maria Mark Martha Martin Mary Matt Maud Maurice Max Maya Megan Mei Mel Mike Mila Milo Mona
Monica Morris Myra Nadia Nancy Naomi Natalie Nate Neil Nell Nick Nina Nora Norman Odette Olaf Olga Omar
Oscar Otis Otto Owen Pablo Pam Pat Paul Pearl Pedro Peggy Percy Phil Phoebe Pierre Polly Priya Rafael Raj
Ralph Ray Rebecca Rex Rhoda Rita Robert Rob Rolf Roman Ron Rosa Rose Ross Roy Ruby Rufus Ruth Ryan Sam
Sandra Sara Scott Sean Selma Sergei Seth Shane Sharon Sheila Sid Silvia Simon Sofia Sonia Stan Stella Stuart
Sue Susan Sven Tanya Tara Ted Teresa Tess Theo Thomas Tim Toby Tom Tony Tracy Troy Uma Ursula Vera Verna
Vic Vince Viola Vivian Wade Walt Wanda Warren Wayne Will Wilma Winston Xena Xiao Yasmin Yoko Yuki Yusuf Yves
Zane Zara Zelda Zeno Zita Zoe
""".split()

LAST = """
Doe Smith Johnson Brown White Green Black Blue Yellow Violet Orange Indigo Red Gray Gold Silver
Abbott Adams Ahmed Ali Allen Alvarez Anderson Archer Arnold Bailey Baker Barnes Barton Bauer Becker Bell
Bennett Berg Bianchi Bishop Blair Bond Boyd Brooks Bryant Burns Burton Butler Byrne Campbell Carter Castro
Chan Chapman Chavez Clark Clayton Coleman Collins Conway Cook Cooper Costa Cox Craft Crane Cruz Curtis Dalton
Davis Dawson Diaz Dixon Doyle Drake Dubois Duffy Dunn Edwards Ellis Engel Evans Farrell Ferrari Fields Fisher
Fleming Flores Forbes Ford Foster Fox Frost Fuller Garcia Garner Gibson Gill Gomez Graham Grant Graves Griffin
Gupta Hahn Hall Hamilton Hansen Hardy Harper Harris Hart Hayes Hess Hill Hoffman Holmes Holt Hoover Howell
Hudson Hughes Hunt Ibarra Ibsen Irwin Ito Ivanov Jackson Jacobs Jain James Jensen Jones Joyce Kane Kaplan Katz
Keller Kelly Kent Khan King Klein Knight Kovacs Kramer Kumar Lamb Lane Larsen Law Lawson Lee Leung Lewis Lind
Lopez Love Lowe Lucas Lund Lynch Lyons Mack Madsen Malik Mann Marsh Martin Mason Mendez Meyer Miles Miller
Mills Mitchell Moore Morales Moreno Morgan Moss Mueller Murphy Myers Nash Nelson Nguyen Nolan North Novak
Ochoa Odell Olsen Ortiz Osborn Owens Page Palmer Park Parker Patel Payne Perez Perry Petrov Pierce Pope Porter
Potter Pratt Price Quick Quist Ramos Reed Reyes Rhodes Rice Rivera Roberts Rogers Romero Rossi Rowe Russell
Salas Sanders Santos Sato Saunders Schmidt Scott Sharp Shaw Short Silva Simms Singh Snow Soto Spencer Stark
Steele Stein Stone Suarez Sutton Suzuki Swan Tanaka Tate Taylor Terry Todd Torres Tran Turner Underwood Upton
Vance Vargas Vaughn Vega Vogel Wade Wagner Walker Wall Walsh Wang Ward Waters Watson Webb Weber Wells West
Wheeler Willis Winter Wolf Wong Wood Wright Wu Wyatt Xu Yang Yates York Young Zamora Zhang Ziegler Zimmer
""".split()

FIRST_HELD_OUT = """
Adrian Alberto Bernice Brandon Cassandra Catherine Clifford Corinne Damien Dominic Eleanor Elijah Farrah
Ferdinand Gilbert Gwendolyn Harriet Horace Imogen Ingmar Jocelyn Julian Kathleen Kenneth Lorraine Ludwig
Marcella Melvin Nathaniel Nicolette Octavia Orlando Patricia Preston Reginald Rosalind Sebastian Sophia
Tabitha Terrence Ulysses Valentina Vernon Wallace Winifred Yolanda Zachary
""".split()

LAST_HELD_OUT = """
Albright Atkinson Bradford Buchanan Carmichael Cunningham Davenport Donovan Ellsworth Erickson Fairbanks
Fitzgerald Gallagher Goldberg Hathaway Henderson Ingram Isaacson Jefferson Jorgensen Kirkpatrick Kowalski
Lancaster Livingston Mackenzie Montgomery Nakamura Norwood Oconnor Oswald Pemberton Peterson Quigley Ramirez
Robinson Schneider Sinclair Thornton Tremblay Ullman Vanderbilt Velasquez Whitfield Winslow Yamamoto Zeller
""".split()

SYLLABLES = """
ba be bi bo bu ca ce co da de di do du fa fe fi fo ga ge go gu ha he hi ho hu ja je jo ju ka ke ki ko la le li
lo lu ma me mi mo mu na ne ni no nu pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we
wi wo ya yo za ze zi zo bran cor dal dor fen gar gil hel jor kal lan mar mel nor ol pel quin ros sten tal tor
ur val wen
""".split()
ENDINGS = ["", "", "n", "r", "s", "l", "m", "k", "t", "th", "ck", "ng", "x", "lt"]

_FORBIDDEN = {name.lower() for name in FIRST_HELD_OUT + LAST_HELD_OUT}


def syllable_name(rng):
    """A name of two or three random syllables: "Moralth"."""
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 2, 3))))
    return (word + rng.choice(ENDINGS)).capitalize()


def _letter_statistics(pool):
    """For every two letters, the letters that follow them in the pool, with repetition."""
    followers = {}
    for name in pool:
        text = "^^" + name.lower() + "$"
        for i in range(len(text) - 2):
            followers.setdefault(text[i:i + 2], []).append(text[i + 2])
    return followers


_FIRST_LETTERS = _letter_statistics(FIRST)
_LAST_LETTERS = _letter_statistics(LAST)


def letter_name(rng, followers):
    """A name of 3 to 11 letters drawn from three-letter statistics; never a held-out one."""
    while True:
        text = "^^"
        while not text.endswith("$") and len(text) < 14:
            text += rng.choice(followers[text[-2:]])
        word = text[2:-1]
        if text.endswith("$") and 3 <= len(word) <= 11 and word not in _FORBIDDEN:
            return word.capitalize()


class NameSource:
    """Draws first and last names, each from the pool, from syllables or from letters.

    held_out=True replaces pool and letters by the held-out names: nothing it yields was seen in training."""

    def __init__(self, p_syllables=0.25, p_letters=0.35, held_out=False):
        self.p_syllables, self.p_letters, self.held_out = p_syllables, p_letters, held_out

    def _draw(self, rng, pool, followers, held_out_pool):
        chance = rng.random()
        if chance < self.p_syllables:
            return syllable_name(rng)
        if self.held_out:
            return rng.choice(held_out_pool)
        if chance < self.p_syllables + self.p_letters:
            return letter_name(rng, followers)
        return rng.choice(pool)

    def first(self, rng):
        return self._draw(rng, FIRST, _FIRST_LETTERS, FIRST_HELD_OUT)

    def last(self, rng):
        return self._draw(rng, LAST, _LAST_LETTERS, LAST_HELD_OUT)


class MixedNames:
    """The acceptance's names: a third from the held-out source, the rest as in training."""

    def __init__(self, share_held_out=1 / 3):
        self.share = share_held_out
        self.known = NameSource(p_syllables=0.0, p_letters=0.0)
        self.unknown = NameSource(p_syllables=0.3, held_out=True)

    def first(self, rng):
        return (self.unknown if rng.random() < self.share else self.known).first(rng)

    def last(self, rng):
        return (self.unknown if rng.random() < self.share else self.known).last(rng)


TRAINING_NAMES = NameSource()
ACCEPTANCE_NAMES = MixedNames()

if __name__ == "__main__":
    generator = random.Random(1)
    print(len(FIRST), len(LAST), [TRAINING_NAMES.first(generator) + " " + TRAINING_NAMES.last(generator)
                                  for _ in range(12)])
