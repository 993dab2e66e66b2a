"""small_talk.py - prompts that are not about a table: the model must answer honestly that it cannot help.

A prompt is a template filled with topics. Templates and topics are split in two: the HELD_OUT ones never
occur in training and are what the acceptance asks. The answer is always REFUSAL, whatever the prompt.

Pure Python: the HTTP acceptance uses it too.
"""
from names import syllable_name

REFUSAL = "I can only answer questions about a table that you give me."

COUNTRIES = """France Germany Italy Spain Portugal Poland Norway Sweden Finland Denmark Japan China India Brazil
Mexico Canada Kenya Egypt Nigeria Peru Chile Greece Turkey Iran Ireland Scotland Austria Hungary Romania Cuba
Australia Vietnam Thailand Korea Morocco Iceland Belgium Argentina""".split()
CITIES = """Paris London Berlin Madrid Rome Tokyo Boston Chicago Vienna Lisbon Athens Cairo Delhi Oslo Prague
Moscow Sydney Toronto Dublin Milan Denver Seattle Nairobi Lima""".split()
THINGS = """cars music water light time gold money bread cheese coffee tea wine books birds fish dogs cats horses
whales bees trees flowers roses rivers mountains oceans planets stars rockets computers networks routers kernels
caches compilers databases numbers triangles atoms electrons energy gravity magnetism weather rain snow storms
volcanoes earthquakes history art painting poetry football tennis chess cooking gardening sleep dreams memory
language grammar law justice trade taxes banks bridges trains ships planes bicycles engines batteries steel glass
paper cotton salt sugar honey apples oranges bananas potatoes rice soup pizza pasta chocolate""".split()
THINGS += """machine learning|neural networks|black holes|prime numbers|the moon|the sun|the sea|the brain|the heart|\
the internet|climate change|artificial intelligence|quantum physics|operating systems|public transport|\
solar power|ancient Rome|modern art|jazz music|space travel|human rights|free software|load balancing|\
language models|the stock market|deep sea fish|electric cars|old maps|stone age tools""".split("|")
PEOPLE = """Albert Einstein|Isaac Newton|Marie Curie|Ada Lovelace|Alan Turing|Julius Caesar|Napoleon|Mozart|\
Beethoven|Shakespeare|Charles Darwin|Galileo|Cleopatra|Leonardo da Vinci|Mahatma Gandhi|Nelson Mandela|\
the president|the king|the prime minister|my neighbour|your maker|your father|the pope|the mayor|my boss|\
my teacher|Mickey Mouse|Sherlock Holmes|Robin Hood|Santa Claus""".split("|")
VERBS = """sleep dance sing fly swim cook write read think dream learn play walk drive count draw help laugh
program translate listen see hear feel travel paint work lie forget remember""".split()
NOUNS = """poem story song joke letter recipe essay speech list plan game program function report summary
sentence riddle review script novel menu title headline slogan diary""".split()
ADJECTIVES = """short long funny sad simple good new old nice strange beautiful small big clever happy quick
cheap modern famous serious""".split()
LANGUAGES = "English French German Spanish Italian Latin Greek Russian Chinese Japanese Dutch Polish".split()
CODE = "Python Java Rust Go Ruby C Perl Lua Haskell SQL Bash JavaScript".split()

# What fills {x}: the value is a function of the random generator.
FILLERS = {
    "country": lambda rng: rng.choice(COUNTRIES), "city": lambda rng: rng.choice(CITIES),
    "thing": lambda rng: rng.choice(THINGS), "thing2": lambda rng: rng.choice(THINGS),
    "person": lambda rng: rng.choice(PEOPLE), "verb": lambda rng: rng.choice(VERBS),
    "noun": lambda rng: rng.choice(NOUNS), "adjective": lambda rng: rng.choice(ADJECTIVES),
    "language": lambda rng: rng.choice(LANGUAGES), "code": lambda rng: rng.choice(CODE),
    "n": lambda rng: str(rng.randint(2, 99)), "m": lambda rng: str(rng.randint(2, 99)),
    "year": lambda rng: str(rng.randint(1200, 2030)), "city2": lambda rng: rng.choice(CITIES),
}

TRAINING_TEMPLATES = """
Hello
Hello!
Hi
Hi there
Hi, how are you?
Hello, who are you?
Hey
Good morning
Good evening!
Good night.
How are you?
How are you doing today?
What's up?
Who are you?
What are you?
What is your name?
Who made you?
Who trained you?
Which model are you?
Are you a person?
Are you a robot?
Are you {person}?
Do you know {person}?
Tell me about yourself.
What can you do?
What can you do for me?
Can you help me?
Help
Help me please.
Thank you
Thanks a lot!
Bye
Goodbye, see you.
Yes
No
OK
Please
Sorry
test
Test 123
ping
Tell me a joke.
Tell me a {noun}.
Tell me a {adjective} {noun} about {thing}.
Tell me something about {thing}.
Write a {noun} about {thing}.
Write a {adjective} {noun} about {thing} and {thing2}.
Write me a {noun}.
Write a {code} program that prints {n}.
Write a function in {code}.
Give me a {noun} about {country}.
Give me {n} ideas for {thing}.
Give me advice about {thing}.
Make a {noun} about {person}.
Sing a song.
What is {thing}?
What are {thing}?
What is the meaning of life?
What is the capital of {country}?
What is the population of {country}?
What is the largest city in {country}?
What is the weather in {city}?
What is the weather like today?
What is the time?
What time is it in {city}?
What day is it?
What is the best {noun}?
What is {n} plus {m}?
What is {n} + {m}?
What is {n} times {m}?
What's {n} minus {m}?
{n} + {m} =
{n} * {m}
Compute {n} / {m}.
What do you think about {thing}?
What do you think of {person}?
What does {thing} mean?
What happened in {year}?
What happened in {country} in {year}?
What should I eat today?
Who is {person}?
Who was {person}?
Who invented {thing}?
Who won the game?
Who is the president of {country}?
Who wrote the {noun}?
Where is {city}?
Where is {country}?
Where can I buy {thing}?
Where are you from?
Where do you live?
When was {person} born?
When did {person} die?
When was {city} founded?
Why is the sky blue?
Why do people {verb}?
Why do we need {thing}?
Why are {thing} important?
How do I {verb}?
How do you make {thing}?
How does {thing} work?
How can I learn {language}?
How can I {verb} better?
How many people live in {country}?
How many {thing} are there?
How far is {city} from {city2}?
How old are you?
How tall is {person}?
How much is {thing}?
How to {verb} in {city}
Is {country} bigger than {city}?
Is {thing} good for you?
Are {thing} better than {thing2}?
Can you {verb}?
Can you {verb} in {language}?
Can you write a {noun}?
Can you explain {thing}?
Could you tell me about {thing}?
Do you like {thing}?
Do you speak {language}?
Do you {verb}?
Did you {verb} yesterday?
Explain {thing}.
Explain {thing} to a child.
Explain how {thing} work in {n} words.
Describe {city}.
Describe {thing} in a {adjective} way.
Translate "{thing}" to {language}.
Translate this to {language}: I like {thing}.
Say hello in {language}.
Say something {adjective}.
Repeat after me: {thing}.
List {n} {thing}.
List the {thing} of {country}.
Name {n} cities in {country}.
Name a {adjective} {noun}.
Summarize the history of {thing}.
Compare {thing} and {thing2}.
I like {thing}.
I am {adjective}.
I am from {city}.
I want to {verb}.
I would like to buy {thing}.
I need help with {thing}.
My name is {person}.
My {noun} is {adjective}.
Let's talk about {thing}.
Let us {verb}.
Please {verb}.
Please write a {noun} about {city}.
Please tell me about {person}.
The capital of {country} is
The meaning of {thing} is
The best {noun} in {city} is
Once upon a time
Once upon a time there was a {adjective} {noun}
In {year}, {person}
In the beginning
My favourite {noun} is
{country}
{city}
{thing}
{person}
{thing} and {thing2}
{adjective} {thing}
I think that {thing} are {adjective}.
{person} likes {thing}.
People in {city} {verb} every day.
Solve {n}x + {m} = 0.
import os
print({n})
def main():
SELECT * FROM {noun}
the the the the
Who are the people in {city}?
What is your favourite {noun}?
What is your age?
What is your email?
What is your phone number?
""".strip().split("\n")

# Questions about a table that a look-up does not answer; {a} and {b} are names in it.
TABLE_TEMPLATES = """
How many people are in the table?
How many people are from {country}?
How many rows does the table have?
Who is the oldest?
Who is the youngest person?
Who lives in {country}?
Who is from {country}?
Who is {n} years old?
Is {a} older than {b}?
Are {a} and {b} from the same country?
Do {a} and {b} know each other?
Is {a} a good name?
List all names.
List the people from {country}.
Name everybody in the table.
Sort the table by age.
What is the average age?
What is this table about?
Summarize the table.
Add a row to the table.
Tell me a joke about {a}.
Write a {noun} about {a}.
What does {a} think of {thing}?
""".strip().split("\n")

FOREIGN = """Der Himmel ist blau.|Wie geht es dir?|Guten Tag, wer bist du?|Was ist die Hauptstadt von Frankreich?|\
Ich mag Brot und Käse.|Bonjour, comment ça va?|Quelle heure est-il?|Où est la gare?|Je ne sais pas.|Hola, ¿qué tal?|\
¿Cómo te llamas?|¿Dónde está la estación?|Buenos días.|Ciao, come stai?|Che ore sono?|Mi piace il vino.|\
Lorem ipsum dolor sit amet, consectetur adipiscing elit.|Cogito ergo sum.|Hej, hur mår du?|Dzień dobry!|\
Привет, как дела?|你好，你是谁？|こんにちは|مرحبا""".split("|")

HELD_OUT_TEMPLATES = """
Hello, nice to meet you!
Good afternoon.
Hi, who are you?
Who am I talking to?
What kind of model are you?
Are you human?
Are you able to {verb}?
Tell me a story about {thing}.
Tell me about {person} and {thing}.
Write a {adjective} letter to {person}.
Write a {code} function about {thing}.
Give me a {adjective} {noun}.
What is the currency of {country}?
What is the capital city of {country}?
What is the history of {thing}?
What is the fastest way to {verb}?
What is {n} divided by {m}?
What are the best {thing} in {city}?
What should I do in {city}?
Who discovered {thing}?
Who is the king of {country}?
Who is your favourite {noun} writer?
Does {person} like {thing}?
Where can I {verb} in {city}?
When was {thing} invented?
When is the next {noun}?
Why is {thing} {adjective}?
Why are you so {adjective}?
How can I get to {city}?
How do people {verb} in {country}?
How many {thing} does {person} have?
How much do {thing} cost in {city}?
Is it {adjective} to {verb}?
Can you tell me a {noun} about {thing}?
Can you recommend a {noun}?
Do you know what {thing} are?
Do you remember {person}?
Explain the difference between {thing} and {thing2}.
Describe a {adjective} day in {country}.
Translate the word {thing} into {language}.
List the {n} most {adjective} {thing}.
I have a question about {thing}.
I do not like {thing} in {city}.
I want to talk to {person}.
Let's play a game.
Please explain {thing} in {language}.
The president of {country} is
The {adjective} thing about {thing} is
A {noun} about {thing}:
Summarize this: {thing} are {adjective}.
""".strip().split("\n")


class _Filled(dict):
    """Computes a filler only when the template asks for it."""

    def __init__(self, rng):
        super().__init__()
        self.rng = rng

    def __missing__(self, key):
        return FILLERS[key](self.rng)


def fill(template, rng):
    return template.format_map(_Filled(rng)) if "{" in template else template


def _perturb(text, rng):
    """What people do to a prompt: forget capitals and marks, or add politeness."""
    chance = rng.random()
    if chance < 0.08:
        text = text.lower()
    elif chance < 0.12:
        text = text.upper()
    elif chance < 0.18:
        text = text.rstrip("?.!")
    elif chance < 0.22:
        text = "Please, " + text[0].lower() + text[1:]
    elif chance < 0.27:
        text = "Hello. " + text
    elif chance < 0.30:
        text = text + " Please."
    elif chance < 0.33:
        text = text + " Thank you!"
    return text


def _random_words(rng):
    """Words in no order: what load generators send."""
    pool = THINGS + VERBS + NOUNS + ADJECTIVES + COUNTRIES
    return " ".join(rng.choice(pool) for _ in range(rng.choice((1, 2, 3, 5, 8, 20, 60))))


def _noise(rng):
    """What is not English: other languages, syllables, letters, digits and signs."""
    chance = rng.random()
    if chance < 0.35:
        return rng.choice(FOREIGN)
    n = rng.choice((1, 2, 4, 8, 16, 30))
    if chance < 0.6:
        return " ".join(syllable_name(rng).lower() for _ in range(n))
    if chance < 0.7:
        return " ".join(str(rng.randrange(10 ** rng.randint(1, 6))) for _ in range(n))
    alphabet = [chr(code) for code in range(33, 127)] + [" "] * 20
    if chance > 0.9:
        alphabet = [chr(rng.choice((0xc0, 0x400, 0x4e00, 0x3040)) + rng.randrange(60)) for _ in range(40)] + [" "]
    return "".join(rng.choice(alphabet) for _ in range(2 * n)).strip() or "?"


def training_prompt(rng):
    """One prompt without a table, from the training half."""
    chance = rng.random()
    if chance < 0.04:
        return _random_words(rng)
    if chance < 0.12:
        return _noise(rng)
    if chance < 0.20:
        return " ".join(fill(rng.choice(TRAINING_TEMPLATES), rng) for _ in range(rng.choice((2, 2, 3, 6))))
    return _perturb(fill(rng.choice(TRAINING_TEMPLATES), rng), rng)


def table_prompt(rng, a, b):
    """A question about a table with the people a and b that is not a look-up."""
    values = _Filled(rng)
    values.update(a=a, b=b)
    return rng.choice(TABLE_TEMPLATES).format_map(values)


def held_out_prompt(rng):
    """One prompt without a table, from the half that training never sees."""
    return fill(rng.choice(HELD_OUT_TEMPLATES), rng)
