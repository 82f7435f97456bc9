package translate

import (
	"fmt"
	"slices"
	"testing"
)

// A translation has a word for each of the source's, of a target vocabulary as large,
// the verb at its end; the same source word has at most two.
func TestLanguages(t *testing.T) {
	const words = 40
	of := map[uint32]map[uint32]bool{}
	n, firstVerb := 0, uint32(words/4)
	for _, s := range SyntheticSentences(2000, words, 3) {
		n++
		if len(s.Source) != len(s.Target) || len(s.Source) < 3 || slices.Max(s.Source) > words || slices.Max(s.Target) > words || slices.Min(s.Target) < 1 {
			t.Fatalf("%v", s)
		}
		at := slices.IndexFunc(s.Source, func(w uint32) bool { return w <= firstVerb })
		if at < 1 {
			t.Fatalf("%v: no verb behind a phrase", s)
		}
		verb := s.Source[at]
		if of[verb] == nil {
			of[verb] = map[uint32]bool{}
		}
		of[verb][s.Target[len(s.Target)-1]] = true
	}
	if n != 2000 || len(of) < 5 {
		t.Errorf("%d sentences with %d verbs", n, len(of))
	}
	two := 0
	for verb, targets := range of {
		if len(targets) > 2 {
			t.Errorf("verb %d has the translations %v", verb, targets)
		}
		if len(targets) == 2 {
			two++
		}
	}
	if two == 0 || two == len(of) {
		t.Errorf("%d of %d verbs have two translations, want some", two, len(of))
	}
}

func TestSentencesAreTheSeeds(t *testing.T) {
	text := func(seed uint64) string { return fmt.Sprint(SyntheticSentences(50, 64, seed)) }
	once, again, other := text(1), text(1), text(2)
	if once != again || once == other {
		t.Error("a seed does not say what the sentences are")
	}
}
