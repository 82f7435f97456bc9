package dataset

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
)

// Columns of a [Click], as in the Criteo click logs.
const (
	ClickNumbers    = 13
	ClickCategories = 26
)

// ClickOptions configure a click log. A field that is zero takes the default beside it.
type ClickOptions struct {
	Samples     int // rows, default 10,000
	Cardinality int // different values of the largest categorical column, default 10,000
	Seed        uint64
}

// A Click is one impression of an advertisement.
type Click struct {
	Clicked    bool
	Numbers    [ClickNumbers]int32 // -1: not known
	Categories [ClickCategories]uint32
}

// Check returns the first fault of the options.
func (o ClickOptions) Check() error {
	if o.Samples < 0 {
		return fmt.Errorf("%d samples: want 1 or more", o.Samples)
	}
	if o.Cardinality < 0 || o.Cardinality > 1<<28 {
		return fmt.Errorf("cardinality %d: want 1 to %d", o.Cardinality, 1<<28)
	}
	return nil
}

// SyntheticClicks yields the rows of a click log. Cardinalities fall geometrically from the largest
// column to 3; values follow a power law within a column. The log odds of a click are a sum of a
// weight per value, of a product of two short vectors for each of a few pairs of columns, and of a
// slope per number. About a quarter of the rows are clicks.
//
// It panics if o.Check returns an error.
func SyntheticClicks(o ClickOptions) iter.Seq[Click] {
	if err := o.Check(); err != nil {
		panic("synth: " + err.Error())
	}
	if o.Samples == 0 {
		o.Samples = 10_000
	}
	if o.Cardinality == 0 {
		o.Cardinality = 10_000
	}
	return func(yield func(Click) bool) {
		m := newMarket(o)
		for i := range o.Samples {
			if !yield(m.click(stream(o.Seed, uint64(i)+1))) {
				return
			}
		}
	}
}

// A market is what all impressions have in common.
type market struct {
	seed    uint64
	columns [ClickCategories]alias
	slopes  [ClickNumbers]float64
	pairs   [6][2]int // columns that act together
}

// newMarket draws what all impressions have in common: the sizes of columns, the pairs that
// interact, and the slopes.
func newMarket(o ClickOptions) *market {
	r := stream(o.Seed, 0)
	m := &market{seed: o.Seed}
	large := math.Log(float64(o.Cardinality))
	small := min(large, math.Log(3))
	for c := range m.columns {
		// Equal steps on a logarithmic scale, from the largest column to the smallest.
		n := math.Exp(large + (small-large)*float64(c)/(ClickCategories-1))
		m.columns[c] = newAlias(zipfWeights(max(1, int(math.Round(n))), 1.1))
	}
	for i := range m.slopes {
		m.slopes[i] = 0.15 * r.NormFloat64()
	}
	for i := range m.pairs {
		p := someOf(r, ClickCategories, 2)
		m.pairs[i] = [2]int{int(p[0]), int(p[1])}
	}
	return m
}

// click draws one impression and its outcome. One number in eight is unknown, as in the logs of
// Criteo.
func (m *market) click(r *rand.Rand) Click {
	var k Click
	// About a quarter of the rows become clicks.
	odds := -1.6
	for c := range k.Categories {
		k.Categories[c] = m.columns[c].draw(r)
		odds += 0.28 * m.trait(c, k.Categories[c], 0)
	}
	for _, p := range m.pairs {
		for d := uint64(1); d <= 2; d++ {
			odds += 0.35 * m.trait(p[0], k.Categories[p[0]], d) * m.trait(p[1], k.Categories[p[1]], d)
		}
	}
	for i := range k.Numbers {
		if r.IntN(8) == 0 {
			k.Numbers[i] = -1
			continue
		}
		x := r.NormFloat64()
		k.Numbers[i] = int32(math.Exp(2 + 1.2*x))
		odds += m.slopes[i] * x
	}
	k.Clicked = r.Float64() < 1/(1+math.Exp(-odds))
	return k
}

// trait returns a standard normal number that is a function of the value of a column: its weight
// (dimension 0), or a coordinate of its vector. Computing it takes the place of a table of all
// values.
func (m *market) trait(column int, value uint32, dimension uint64) float64 {
	s := rand.NewPCG(m.seed^dimension<<56, uint64(column)<<32|uint64(value))
	return rand.New(s).NormFloat64()
}
