package dataset

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
)

// TextOptions configure a set of texts. A field that is zero takes the default beside it; Seed 0 is
// a seed like any other.
type TextOptions struct {
	Samples    int     // rows, default 10,000
	Features   int     // feature ids are 1..Features, default 20,000
	Topics     int     // default 20
	Words      int     // mean number of different words of a row, default 75
	Skew       float64 // exponent of the word frequencies, default 1.05
	TopicShare float64 // share of a row's words that its topics choose, default 0.5
	Noise      float64 // share of labels turned round, default 0.01; below 0: none
	Seed       uint64
}

// A SyntheticRow is one sample. Its slices belong to the generator and are valid until the next
// row.
type SyntheticRow struct {
	Label  float64   // +1 or -1
	IDs    []uint64  // ascending, each once, 1..Features
	Values []float32 // one per id; the squares sum to 1
}

// withDefaults returns the options with defaults for fields that are zero. The default number of
// words is smaller for a small vocabulary, so that Check accepts it.
func (o TextOptions) withDefaults() TextOptions {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Samples, 10_000)
	def(&o.Features, 20_000)
	def(&o.Topics, 20)
	def(&o.Words, min(75, max(1, o.Features/4)))
	if o.Skew == 0 {
		o.Skew = 1.05
	}
	if o.TopicShare == 0 {
		o.TopicShare = 0.5
	}
	if o.Noise == 0 {
		o.Noise = 0.01
	}
	return o
}

// Check returns the first fault of the options.
func (o TextOptions) Check() error {
	o = o.withDefaults()
	switch {
	case o.Samples < 1:
		return fmt.Errorf("%d samples: want 1 or more", o.Samples)
	case o.Features < 2 || o.Features > math.MaxUint32:
		return fmt.Errorf("%d features: want 2 to %d", o.Features, uint32(math.MaxUint32))
	case o.Topics < 1 || o.Topics > 1<<16:
		return fmt.Errorf("%d topics: want 1 to %d", o.Topics, 1<<16)
	case o.Words < 1 || o.Words > o.Features/2:
		return fmt.Errorf("%d words a row: want 1 to half the %d features", o.Words, o.Features)
	case !(o.Skew > 0 && o.Skew <= 4):
		return fmt.Errorf("skew %v: want above 0, at most 4", o.Skew)
	case !(o.TopicShare > 0 && o.TopicShare <= 1):
		return fmt.Errorf("topic share %v: want above 0, at most 1", o.TopicShare)
	case o.Noise >= 0.5:
		return fmt.Errorf("noise %v: want below 0.5", o.Noise)
	}
	return nil
}

// SyntheticText yields the rows of a set of texts. A row has a main topic and a side topic: its
// words come from the vocabulary of the whole language and from those of its topics, all with
// power-law frequencies. Values are (1 + ln count) times the inverse document frequency, scaled to
// unit length. Half of the topics stand for +1, half for -1; the main one decides the label.
//
// It panics if o.Check returns an error.
func SyntheticText(o TextOptions) iter.Seq[SyntheticRow] {
	if err := o.Check(); err != nil {
		panic("synth: " + err.Error())
	}
	o = o.withDefaults()
	return func(yield func(SyntheticRow) bool) {
		lang := newLanguage(o)
		w := writer{language: lang, counts: make(map[uint32]int)}
		for i := range o.Samples {
			if !yield(w.row(stream(o.Seed, uint64(i)+1))) {
				return
			}
		}
	}
}

// language is what all rows have in common.
type language struct {
	TextOptions
	general    alias      // rank in the whole vocabulary
	words      []uint32   // rank -> feature
	topical    alias      // rank in a topic's vocabulary
	vocabulary [][]uint32 // topic, rank -> feature
	idf        []float32  // of a feature
}

// newLanguage draws the vocabularies of the language and its topics. The inverse document
// frequencies are computed from the probabilities of words, not counted, so that a row does not
// depend on the others.
func newLanguage(o TextOptions) *language {
	r := stream(o.Seed, 0)
	l := &language{TextOptions: o, idf: make([]float32, o.Features)}
	// The weights are needed twice: the tables draw from them, and chance sums them.
	general := zipfWeights(o.Features, o.Skew)
	l.general = newAlias(general)
	l.words = permutation(r, o.Features)
	// A topic's vocabulary is a few times its share of all words, so that topics overlap.
	size := min(o.Features, max(20, 3*o.Features/o.Topics))
	topical := zipfWeights(size, o.Skew)
	l.topical = newAlias(topical)
	// The probability that a random word of a row is this feature, averaged over topics.
	chance := make([]float64, o.Features)
	normalize(general)
	normalize(topical)
	for rank, f := range l.words {
		chance[f] = (1 - o.TopicShare) * general[rank]
	}
	for range o.Topics {
		v := someOf(r, o.Features, size)
		l.vocabulary = append(l.vocabulary, v)
		for rank, f := range v {
			chance[f] += o.TopicShare / float64(o.Topics) * topical[rank]
		}
	}
	for f, p := range chance {
		l.idf[f] = float32(math.Log(1 + 1/(p*float64(o.Words)+1e-9)))
	}
	return l
}

// normalize scales weights to a sum of 1.
func normalize(w []float64) {
	var sum float64
	for _, v := range w {
		sum += v
	}
	for i := range w {
		w[i] /= sum
	}
}

// permutation returns 0..n-1 in random order.
func permutation(r *rand.Rand, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(i)
	}
	r.Shuffle(n, func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

// someOf returns k distinct numbers below n in random order.
func someOf(r *rand.Rand, n, k int) []uint32 {
	seen := make(map[uint32]bool, k)
	some := make([]uint32, 0, k)
	for len(some) < k {
		if f := uint32(r.IntN(n)); !seen[f] {
			seen[f] = true
			some = append(some, f)
		}
	}
	return some
}

// A writer makes rows, one after the other, in memory that it reuses.
type writer struct {
	*language
	counts map[uint32]int
	ids    []uint64
	values []float32
}

// row makes a row from its own random source.
func (w *writer) row(r *rand.Rand) SyntheticRow {
	mainTopic, sideTopic := r.IntN(w.Topics), r.IntN(w.Topics)
	w.writeCounts(r, w.length(r), mainTopic, sideTopic)
	w.ids = w.ids[:0]
	for f := range w.counts {
		w.ids = append(w.ids, uint64(f)+1)
	}
	slices.Sort(w.ids)
	w.values = w.values[:0]
	var square float64
	for _, id := range w.ids {
		// Feature ids begin at 1, vocabularies at 0.
		f := uint32(id - 1)
		v := float32(1+math.Log(float64(w.counts[f]))) * w.idf[f]
		square += float64(v) * float64(v)
		w.values = append(w.values, v)
	}
	// Rows of unit length make step sizes independent of the length of a text.
	scale := float32(1 / math.Sqrt(square))
	for i := range w.values {
		w.values[i] *= scale
	}
	label := float64(1 - 2*(mainTopic%2))
	if r.Float64() < w.Noise {
		label = -label
	}
	return SyntheticRow{Label: label, IDs: w.ids, Values: w.values}
}

// length draws the number of different words of a row: log-normal with mean Words, as lengths of
// messages are.
func (w *writer) length(r *rand.Rand) int {
	const sigma = 0.6
	n := math.Exp(math.Log(float64(w.Words)) - sigma*sigma/2 + sigma*r.NormFloat64())
	return min(max(1, int(math.Round(n))), w.Features/2)
}

// writeCounts draws words until distinct different ones have come, or gives up if the rest of a
// small vocabulary would take too long.
func (w *writer) writeCounts(r *rand.Rand, distinct, mainTopic, sideTopic int) {
	clear(w.counts)
	for draws := 0; len(w.counts) < distinct && draws < 8*distinct+64; draws++ {
		var f uint32
		switch p := r.Float64(); {
		case p >= w.TopicShare:
			f = w.words[w.general.draw(r)]
		// Four fifths of the topical words are of the main topic, so the label can be learned from
		// them.
		case p < 0.8*w.TopicShare:
			f = w.vocabulary[mainTopic][w.topical.draw(r)]
		default:
			f = w.vocabulary[sideTopic][w.topical.draw(r)]
		}
		w.counts[f]++
	}
}
