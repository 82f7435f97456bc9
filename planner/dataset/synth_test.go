package dataset

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestTextRows(t *testing.T) {
	o := TextOptions{Samples: 3000, Features: 5000, Topics: 8, Seed: 7}
	degree := make([]int, o.Features+1)
	pins, positive := 0, 0
	for row := range SyntheticText(o) {
		var square float64
		for i, id := range row.IDs {
			if id < 1 || id > uint64(o.Features) || (i > 0 && id <= row.IDs[i-1]) {
				t.Fatalf("ids %v: want ascending within 1..%d", row.IDs, o.Features)
			}
			square += float64(row.Values[i]) * float64(row.Values[i])
			degree[id]++
		}
		if math.Abs(square-1) > 1e-5 {
			t.Fatalf("squared length %v, want 1", square)
		}
		if row.Label == 1 {
			positive++
		} else if row.Label != -1 {
			t.Fatalf("label %v", row.Label)
		}
		pins += len(row.IDs)
	}
	if mean := float64(pins) / float64(o.Samples); mean < 65 || mean > 85 {
		t.Errorf("%.1f words a row, want about 75", mean)
	}
	if positive < o.Samples/3 || positive > 2*o.Samples/3 {
		t.Errorf("%d of %d rows are positive", positive, o.Samples)
	}
	slices.SortFunc(degree, func(a, b int) int { return b - a })
	if top := degree[0]; top < o.Samples/4 {
		t.Errorf("the most frequent word stands in %d of %d rows: no power law", top, o.Samples)
	}
	if rare := degree[o.Features*3/4]; rare > 40 {
		t.Errorf("a word of the last quarter stands in %d rows: no power law", rare)
	}
}

// Rows of one topic share more of the rarer words than rows of different ones:
// that is what a partitioner finds.
func TestTextTopics(t *testing.T) {
	share := func(o TextOptions) float64 {
		var rows [][]uint64
		degree := make(map[uint64]int)
		for row := range SyntheticText(o) {
			rows = append(rows, slices.Clone(row.IDs))
			for _, id := range row.IDs {
				degree[id]++
			}
		}
		most := 0 // rare words shared with the nearest row, summed over 100 rows
		for i := range rows[:100] {
			nearest := 0
			for j := range rows {
				n := 0
				for _, id := range rows[i] {
					if _, shared := slices.BinarySearch(rows[j], id); shared && i != j && degree[id] <= o.Samples/20 {
						n++
					}
				}
				nearest = max(nearest, n)
			}
			most += nearest
		}
		return float64(most) / 100
	}
	o := TextOptions{Samples: 400, Features: 8000, Topics: 10, Seed: 1, Words: 60}
	with := share(o)
	o.TopicShare = 0.01
	if without := share(o); with < 1.5*without {
		t.Errorf("nearest row shares %.1f rare words with topics, %.1f without", with, without)
	}
}

func TestSameSeedSameBytes(t *testing.T) {
	text := func(seed uint64) string {
		var b bytes.Buffer
		n, err := WriteLibsvm(&b, SyntheticText(TextOptions{Samples: 50, Features: 300, Seed: seed}))
		if err != nil || n != 50 {
			t.Fatalf("wrote %d rows: %v", n, err)
		}
		return b.String()
	}
	first, again := text(3), text(3)
	if first != again {
		t.Error("one seed, two texts")
	}
	if first == text(4) {
		t.Error("two seeds, one text")
	}
}

func TestClicks(t *testing.T) {
	o := ClickOptions{Samples: 5000, Cardinality: 1000, Seed: 5}
	clicks := 0
	var distinct [ClickCategories]map[uint32]bool
	for k := range SyntheticClicks(o) {
		if k.Clicked {
			clicks++
		}
		for c, v := range k.Categories {
			if distinct[c] == nil {
				distinct[c] = make(map[uint32]bool)
			}
			distinct[c][v] = true
		}
	}
	if rate := float64(clicks) / 5000; rate < 0.12 || rate > 0.45 {
		t.Errorf("click rate %.2f", rate)
	}
	if n := len(distinct[0]); n < 300 || n > 1000 {
		t.Errorf("largest column has %d values, want most of 1000", n)
	}
	if n := len(distinct[ClickCategories-1]); n != 3 {
		t.Errorf("smallest column has %d values, want 3", n)
	}
	var b bytes.Buffer
	if _, err := WriteCriteo(&b, SyntheticClicks(ClickOptions{Samples: 3})); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := strings.Count(line, "\t"); n != ClickNumbers+ClickCategories {
			t.Errorf("%d tabs in %q", n, line)
		}
	}
}

func TestAliasFollowsWeights(t *testing.T) {
	weights := []float64{5, 0, 1, 2, 2}
	a, r := newAlias(weights), stream(1, 1)
	got := make([]float64, len(weights))
	const draws = 200_000
	for range draws {
		got[a.draw(r)] += 10.0 / draws
	}
	for i, w := range weights {
		if math.Abs(got[i]-w) > 0.1 {
			t.Errorf("weight %d: drawn %.2f, want %.2f", i, got[i], w)
		}
	}
}

func TestCheck(t *testing.T) {
	for name, o := range map[string]TextOptions{
		"samples":     {Samples: -1},
		"features":    {Features: 1},
		"topics":      {Topics: -3},
		"words a row": {Features: 10, Words: 6},
		"skew":        {Skew: -1},
		"topic share": {TopicShare: 2},
		"noise":       {Noise: 0.7},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if err := (TextOptions{}).Check(); err != nil {
		t.Error(err)
	}
}
