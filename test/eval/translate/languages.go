package translate

import "math/rand/v2"

// A Sentence is a source sentence and its translation, as numbers of words from 1.
type Sentence struct{ Source, Target []uint32 }

// SyntheticSentences returns sentences of an artificial language of so many words, 16 or more, with
// their translations into another. A source sentence is a noun phrase, a verb, and one or two more noun phrases; a phrase
// has up to two adjectives before its noun. The translation has the verb at the end and adjectives
// after their nouns. An adjective has one of two forms, by the kind of its noun. Every eighth noun
// or verb has one of two translations at random: no model can predict which, so that the loss stays
// above zero. Words follow a power law.
func SyntheticSentences(samples, words int, seed uint64) []Sentence {
	l := newLanguages(words, seed)
	r := rand.New(rand.NewPCG(seed, 2))
	all := make([]Sentence, samples)
	for i := range all {
		all[i] = l.sentence(r)
	}
	return all
}

// languages are two vocabularies. Source words are numbered verbs first, then adjectives, then
// nouns; the number of a target word is random, so that it reveals nothing.
type languages struct {
	verbs, adjectives, nouns int
	of                       []uint32 // by 2 x the source word, and 1 more for the second form
}

// newLanguages draws the translations. Every source word has two forms, which are the same except
// for adjectives and words with a synonym.
func newLanguages(words int, seed uint64) *languages {
	l := &languages{verbs: words / 4, adjectives: words / 8, of: make([]uint32, 2*(words+1))}
	l.nouns = words - l.verbs - 2*l.adjectives // adjectives have two target words each
	r := rand.New(rand.NewPCG(seed, 1))
	targets := r.Perm(words)
	next := func() uint32 {
		t := targets[0]
		targets = targets[1:]
		return uint32(t) + 1
	}
	for w := 1; w <= l.verbs+l.adjectives+l.nouns; w++ {
		l.of[2*w] = next()
		l.of[2*w+1] = l.of[2*w]
		if adjective := w > l.verbs && w <= l.verbs+l.adjectives; adjective {
			l.of[2*w+1] = next()
		}
	}
	for w := 8; w <= l.verbs+l.adjectives+l.nouns; w += 8 {
		if w > l.verbs && w <= l.verbs+l.adjectives {
			continue
		}
		l.of[2*w+1] = l.of[2*w-2] // the translation of the word before, as a synonym
	}
	return l
}

// draw returns one of n words from first on, with a bias to the first ones.
func draw(r *rand.Rand, first, n int) uint32 {
	u := r.Float64()
	return uint32(first + int(u*u*float64(n)))
}

// sentence draws a sentence and translates it phrase by phrase. The verb follows the first phrase
// and is translated last, so a model has to carry it over the rest of the sentence.
func (l *languages) sentence(r *rand.Rand) (s Sentence) {
	form := func(w uint32, form int) uint32 { return l.of[2*int(w)+form] }
	phrase := func() {
		noun := draw(r, 1+l.verbs+l.adjectives, l.nouns)
		var adjectives []uint32
		for range r.IntN(3) {
			adjectives = append(adjectives, draw(r, 1+l.verbs, l.adjectives))
		}
		s.Source = append(append(s.Source, adjectives...), noun)
		s.Target = append(s.Target, form(noun, r.IntN(2)))
		for _, a := range adjectives {
			s.Target = append(s.Target, form(a, int(noun)%2))
		}
	}
	verb := draw(r, 1, l.verbs)
	phrase()
	s.Source = append(s.Source, verb)
	for range 1 + r.IntN(2) {
		phrase()
	}
	s.Target = append(s.Target, form(verb, r.IntN(2)))
	return s
}
