package stream

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const least = SpillOverhead + 1024*pairBytes

// sorted returns what a sorter of the least memory makes of the pairs.
func sorted(t rapid.TB, dir string, pairs []SpilledPair) ([]SpilledPair, int64) {
	s, err := NewSpillSorter(dir, least)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pairs {
		if err := s.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	var got []SpilledPair
	if err := s.Each(context.Background(), func(p SpilledPair) error { got = append(got, p); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return got, s.Spilled()
}

func TestEqualsSortingInMemory(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		// Up to some 60 runs, so that runs are merged on the way.
		pairs := make([]SpilledPair, rapid.IntRange(0, 60_000).Draw(t, "pairs"))
		ids := rapid.SampledFrom([]uint64{3, 5000, 1 << 63}).Draw(t, "ids")
		for i := range pairs {
			pairs[i] = SpilledPair{random.Uint64N(ids), uint16(random.IntN(3)) * 32000}
		}
		got, _ := sorted(t, dir, pairs)
		slices.SortFunc(pairs, compare)
		if want := slices.Compact(pairs); !slices.Equal(got, want) {
			t.Fatalf("%d pairs, want %d", len(got), len(want))
		}
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
}

func TestRepeatedPairsStayInMemory(t *testing.T) {
	var pairs []SpilledPair
	for i := range 100_000 {
		pairs = append(pairs, SpilledPair{uint64(i % 400), 1})
	}
	if got, spilled := sorted(t, t.TempDir(), pairs); len(got) != 400 || spilled != 0 {
		t.Errorf("%d pairs, %d bytes spilled", len(got), spilled)
	}
}

func TestErrors(t *testing.T) {
	if _, err := NewSpillSorter(t.TempDir(), least-pairBytes); err == nil {
		t.Error("too little memory passed")
	}
	s, err := NewSpillSorter("/nonexistent", least)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; err == nil && i < 3000; i++ {
		err = s.Add(SpilledPair{uint64(i), 0})
	}
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that does not exist: %v", err)
	}
}
