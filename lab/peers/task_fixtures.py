#!/usr/bin/env python3
"""Writes fixtures/tasks/: small sets of tasks of our own in the three forms that llama-perplexity reads.

Usage: python3 lab/peers/task_fixtures.py
"""

import struct
from pathlib import Path

# Context, index of the right ending, endings.
HELLASWAG = [
    ("Making tea: A woman fills a kettle with water and puts it on the stove. She", 1,
     ["paints the kettle green and leaves the house.", "waits until the water boils and pours it over the tea.",
      "throws the stove out of the window.", "sings to the water until it freezes."]),
    ("Riding a bike: A boy sits on a bicycle while his father holds the saddle. The father", 0,
     ["runs beside him and then lets go.", "eats the wheels one by one.", "opens the saddle and reads it.",
      "flies over the bicycle with a spoon."]),
    ("Baking bread: The baker kneads the dough and puts it into a bowl. After an hour", 2,
     ["the bowl has learned to swim.", "the baker is a dough.", "the dough has risen to twice its size.",
      "the hour puts on its coat."]),
    ("Washing a car: A man sprays his car with a hose. Then he", 3,
     ["plants the car in the garden.", "drinks the hose and sleeps.", "asks the car for its name.",
      "rubs it with a sponge and soap."]),
    ("Playing chess: Two friends sit at a table with a chess board. One of them", 0,
     ["moves a pawn forward and waits.", "pours soup over the king and leaves.", "folds the table into a boat.",
      "counts the clouds with a hammer."]),
    ("Swimming: A girl stands at the edge of the pool. She takes a breath and", 1,
     ["becomes a chair.", "dives into the water.", "buys the edge of the pool.", "reads the breath aloud."]),
    ("Cooking pasta: He brings a pot of salted water to a boil. He", 2,
     ["puts the salt back into the sea.", "calls the pot on the telephone.", "adds the pasta and stirs it.",
      "hangs the water on a line."]),
    ("Painting a wall: A painter opens a can of white paint. She", 3,
     ["eats the wall with a fork.", "teaches the can to bark.", "closes the wall and sails away.",
      "dips a roller into it and begins at the top."]),
    ("Planting a tree: They dig a hole in the garden and put a young tree into it. Then they", 0,
     ["fill the hole with earth and water the tree.", "iron the hole and wear it.", "send the garden by mail.",
      "ask the tree to dig."]),
    ("Brushing teeth: The child puts toothpaste on the brush. The child", 1,
     ["drives the brush to work.", "brushes the teeth and rinses the mouth.", "builds a house of toothpaste.",
      "sells the teeth to the brush."]),
    ("Skiing: A skier stands on top of a snowy hill. He pushes himself off and", 2,
     ["boils the hill in a pan.", "types a letter to the snow.", "slides down the slope.",
      "knits the skis together with rice."]),
    ("Fishing: An old man sits by the lake with a rod. After a while", 3,
     ["the lake puts him in a bag.", "the rod begins to teach history.", "the man peels the lake.",
      "he pulls a fish out of the water."]),
    ("Changing a tire: The driver lifts the car with a jack. She", 0,
     ["takes off the flat wheel and puts on the spare one.", "fills the jack with honey.",
      "marries the spare wheel.", "folds the road in half."]),
    ("Cutting hair: The barber puts a cape around the customer. He", 1,
     ["plants carrots in the mirror.", "combs the hair and cuts it with scissors.", "melts the chair.",
      "swims around the cape twice."]),
    ("Building a fire: They gather dry wood and put it in a circle of stones. One of them", 2,
     ["washes the stones with wood.", "sings the wood to the moon and leaves the forest by train.",
      "lights a match and holds it to the wood.", "writes the circle a cheque."]),
    ("Playing the piano: The pianist sits down and opens the lid. She", 3,
     ["pours the lid into a glass.", "paints the keys with fish.", "takes the piano for a walk.",
      "puts her hands on the keys and plays."]),
    ("Making a salad: The cook washes the lettuce and cuts the tomatoes. Then he", 0,
     ["mixes them in a bowl with oil.", "buries the bowl on the moon.", "hires the lettuce as a driver.",
      "reads the oil a story."]),
    ("Shoveling snow: It has snowed all night. In the morning the neighbour", 1,
     ["drinks the roof.", "clears the path with a shovel.", "sews the snow to the sky.", "paints the night blue."]),
    ("Sewing a button: She threads a needle and takes the shirt. She", 2,
     ["parks the shirt in the garage.", "asks the needle for directions to the sea.",
      "sews the button on with a few stitches.", "fries the thread."]),
    ("Running a race: The runners wait at the starting line. When the shot is heard", 3,
     ["they bake the line.", "the shot sits down and eats.", "the race takes off its shoes.", "they start to run."]),
    ("Reading a book: The student opens the book at the first page and", 0,
     ["begins to read.", "plugs it into the wall to cook.", "drinks the cover.", "flies it over the lake like a bird of stone."]),
    ("Feeding a dog: The dog waits beside its bowl. The owner", 1,
     ["puts the bowl on his head and votes.", "fills the bowl with food.", "bites the dog's book.",
      "paints the food on the ceiling."]),
    ("Mowing the lawn: The grass has grown tall. The gardener starts the mower and", 2,
     ["drives it through the soup.", "sells the grass a ticket.", "walks up and down the lawn.",
      "sleeps inside the engine."]),
    ("Making a call: He takes the phone out of his pocket, dials a number and", 3,
     ["eats the number.", "waters the phone until it grows.", "folds his pocket into a swan.",
      "holds the phone to his ear."]),
]

# Sentence with a gap, two words, number of the right one.
WINOGRANDE = [
    ("The trophy did not fit into the suitcase because the _ was too big.", "trophy", "suitcase", 1),
    ("The trophy did not fit into the suitcase because the _ was too small.", "trophy", "suitcase", 2),
    ("Anna gave Maria a present and _ thanked her for it.", "Anna", "Maria", 2),
    ("The ball broke the window because the _ was made of steel.", "ball", "window", 1),
    ("The ball broke the window because the _ was made of thin glass.", "ball", "window", 2),
    ("Tom asked Peter for help, but _ was too busy to give any.", "Tom", "Peter", 2),
    ("The cat chased the mouse until the _ was tired of running after it.", "cat", "mouse", 1),
    ("The soup was hot and the bread was cold, so he blew on the _ before he ate it.", "soup", "bread", 1),
    ("The nurse helped the patient because the _ was ill.", "nurse", "patient", 2),
    ("Paul lent John money since _ had none left.", "Paul", "John", 2),
    ("The bottle was empty and the glass was full, so she drank from the _.", "bottle", "glass", 2),
    ("The red box is heavier than the blue box, so it is easier to lift the _ box.", "red", "blue", 2),
    ("The teacher praised the pupil because the _ had worked hard.", "teacher", "pupil", 2),
    ("The knife cut the apple because the _ was sharp.", "knife", "apple", 1),
    ("It was raining, so Emma took the umbrella and left the sunglasses; she needed the _.", "umbrella", "sunglasses", 1),
    ("The wolf ate the sheep because the _ was hungry.", "wolf", "sheep", 1),
    ("Lisa beat Carla in chess because _ had practised more.", "Lisa", "Carla", 1),
    ("The lorry passed the tractor because the _ was slow.", "lorry", "tractor", 2),
    ("The doctor called the plumber since the _ had a leaking pipe.", "doctor", "plumber", 1),
    ("\"Please,\" said the girl to the baker, and the _ gave her a loaf.", "girl", "baker", 2),
    ("The candle lit the room until the _ went out.", "candle", "room", 1),
    ("Of the two keys only the small one fit, so he used the _.", "large one", "small one", 2),
    ("The shirt was dirty and the coat was clean, so he washed the _ first.", "shirt", "coat", 1),
    ("He put the milk into the fridge and the plate on the shelf, for the _ must stay cold.", "milk", "plate", 1),
]

# Question, answers, index of the right one.
MULTIPLE_CHOICE = [
    ("Question: What is the capital of France? Answer:", ["Paris", "Madrid", "Rome", "Vienna"], 0),
    ("Question: How many legs does a spider have? Answer:", ["four", "six", "eight"], 2),
    ("Question: Which planet is closest to the sun? Answer:", ["Mars", "Mercury", "Jupiter", "Neptune", "Earth"], 1),
    ("Question: What do cows give? Answer:", ["milk", "wine"], 0),
    ("Question: What is frozen water called? Answer:", ["steam", "ice", "sand", "smoke"], 1),
    ("Question: In which season do leaves fall? Answer:", ["In spring", "In summer", "In autumn", "In winter"], 2),
    ("Question: What is two plus two? Answer:", ["three", "four", "five", "nine"], 1),
    ("Question: Which animal barks? Answer:", ["The cat", "The cow", "The dog", "The fish"], 2),
    ("Question: What do bees make? Answer:", ["honey", "bread", "paper money"], 0),
    ("Question: Who wrote Romeo and Juliet? Answer:", ["William Shakespeare", "Isaac Newton", "Napoleon"], 0),
    ("Question: What colour is the sky on a clear day? Answer:", ["green", "blue", "black", "red"], 1),
    ("Question: Which is a metal? Answer:", ["wood", "iron", "wool", "glass"], 1),
    ("Question: What do plants need to grow? Answer:", ["light and water", "stones and noise"], 0),
    ("Question: How many days has a week? Answer:", ["five", "six", "seven", "ten"], 2),
    ("Question: What is the opposite of hot? Answer:", ["cold", "warm", "dry", "loud"], 0),
    ("Question: Which organ pumps blood? Answer:", ["the lung", "the heart", "the stomach", "the skin"], 1),
    ("Question: What is the largest ocean? Answer:", ["the Atlantic", "the Pacific", "the Baltic Sea"], 1),
    ("Question: On which continent is Egypt? Answer:", ["Asia", "Europe", "Africa", "Australia"], 2),
    ("Question: Is the sun a star? Answer:", ["Yes, it is.", "No, it is a stone."], 0),
    ("Question: What gas do we breathe in to live? Answer:", ["oxygen", "helium", "chlorine", "neon"], 0),
    ("Question: Which tool drives a nail into wood? Answer:", ["a hammer", "a spoon", "a pillow"], 0),
    ("Question: What is H2O? Answer:", ["salt", "water", "gold", "air"], 1),
    ("Question: Which bird cannot fly? Answer:", ["the eagle", "the penguin", "the swallow", "the owl"], 1),
    ("Question: What comes after Monday? Answer:", ["Sunday", "Friday", "Tuesday"], 2),
]


def string(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def multiple_choice():
    bodies = []
    for question, answers, right in MULTIPLE_CHOICE:
        labels = b"".join(struct.pack("<i", int(at == right)) for at in range(len(answers)))
        # Of the answers of which several are right there are none.
        bodies.append(string(question) + struct.pack("<I", len(answers)) + b"".join(map(string, answers)) + labels
                      + struct.pack("<I", 0))
    out = struct.pack("<I", len(bodies))
    offset = 4 + 4 * len(bodies)
    for body in bodies:
        out += struct.pack("<I", offset)
        offset += len(body)
    return out + b"".join(bodies)


def csv(at, sentence, first, second, right):
    if "," in sentence or '"' in sentence:
        sentence = '"' + sentence.replace('"', '""') + '"'
    return f"{at},{sentence},{first},{second},{right}\n"


def main():
    folder = Path(__file__).resolve().parents[2] / "fixtures/tasks"
    folder.mkdir(exist_ok=True)
    lines = [line for context, right, endings in HELLASWAG for line in [context, str(right), *endings]]
    (folder / "hellaswag.txt").write_text("\n".join(lines) + "\n")
    (folder / "winogrande.csv").write_text("".join(csv(at, *task) for at, task in enumerate(WINOGRANDE)))
    (folder / "multiple-choice.bin").write_bytes(multiple_choice())


if __name__ == "__main__":
    main()
