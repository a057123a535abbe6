package bpe

import (
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

func TestNFC(t *testing.T) {
	fillClasses()
	marks := strings.Repeat("\u0323\u0301", 100)
	for text, want := range map[string]string{
		"plain\xff":                                    "plain\xff",
		"e\u0301 q\u0307\u0323":                        "é q\u0323\u0307",
		"e" + marks:                                    "\u1eb9" + strings.Repeat("\u0323", 99) + strings.Repeat("\u0301", 100),
		"x e" + marks + "e\u0301":                      "x \u1eb9" + strings.Repeat("\u0323", 99) + strings.Repeat("\u0301", 100) + "é",
		"e\u0301\xff" + marks:                          "é\xff" + strings.Repeat("\u0323", 100) + strings.Repeat("\u0301", 100),
		"\u1112\u1161\u11ab":                           "한",
		"e\u0301\u0898\u0323 e\u08ca\u0301":            "é\u0898\u0323 e\u08ca\u0301",
		"\U00010061\u0301e\u0301":                      "\U00010061\u0301é",
		"e\u0301" + strings.Repeat("\u1161\u0301", 40): "é" + strings.Repeat("\u1161\u0301", 40),
		"x\U00011f00\u0301":                            "x\U00011f00\u0301",
		"\U00011099\U000110ba e":                       "\U0001109a e",
	} {
		if got := string(nfc([]byte(text))); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	// For these characters and fewer than 30 marks, package norm is right.
	random := rand.New(rand.NewPCG(1, 2))
	characters := []rune("aeoÅé\u0301\u0323\u0307\u0344\u0334\u1112\u1161\u11ab가ཱཱིི\u0f71\u0f73ﬁ\u2126क़")
	for range 10_000 {
		var text []rune
		for range random.IntN(15) {
			text = append(text, characters[random.IntN(len(characters))])
		}
		if got, want := string(composeNFC([]byte(string(text)))), norm.NFC.String(string(text)); got != want {
			t.Fatalf("%q: %q, want %q", string(text), got, want)
		}
	}
}
