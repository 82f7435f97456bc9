package main

import (
	"math"
	"testing"
)

// TestBleu compares with scores computed by hand.
func TestBleu(t *testing.T) {
	reference := [][]uint32{{1, 2, 3, 4, 5}, {6, 7, 8, 9}}
	for _, c := range []struct {
		name string
		of   [][]uint32
		want float64
	}{
		{"the same", reference, 100},
		{"no run of four", [][]uint32{{1, 2, 3}, {9, 8, 7, 6}}, 0},
		{"a word too many", [][]uint32{{1, 2, 3, 4, 5, 5}, {6, 7, 8, 9}}, 100 * math.Pow(9./10*7./8*5./6*3./4, .25)},
		{"too short", [][]uint32{{1, 2, 3, 4, 5}, {}}, 100 * math.Exp(1-9./5)},
	} {
		if got := bleu(c.of, reference); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
