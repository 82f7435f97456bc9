package train

import (
	"errors"
	"slices"
	"testing"
)

// Without anything on the way all rows come whole.
func TestRowsComeWhole(t *testing.T) {
	o := defaults("rows")
	o.Steps, o.Server.ValueLength, o.Rows.Sparsity = 20, 16, 0.9
	o.Count.Keys, o.Count.Batch = 50, 10
	for _, r := range mustRun(t, config(t, 2, 3), o) {
		if r.Checked != 50 || r.CutRows != 0 || r.Steps != 20 {
			t.Errorf("%+v", r)
		}
	}
}

// A row may come whole or without its smallest values, and in no other way; the next
// gradient is of what came.
func TestRowsAreChecked(t *testing.T) {
	r := &rower{keys: []uint64{7}, width: 5, sparsity: 0.6, has: []float32{1, -5, 0, 4, -2}}
	all, part := []bool{true, true, true, true, true}, []bool{false, true, false, true, false}
	for _, c := range []struct {
		got  []float32
		mask []bool
		cut  int
	}{
		{[]float32{1, -5, 0, 4, -2}, all, 0}, {[]float32{0, -5, 0, 4, 0}, part, 1},
		{[]float32{0, -5, 0, 4, -2}, nil, 0}, {[]float32{0, -5, 0, 0, 0}, nil, 0}, {[]float32{1, -5, 0, 4, -3}, nil, 0}, {[]float32{0, -5, 1, 4, 0}, nil, 0},
	} {
		r.cut = 0
		mask, err := r.check(0, c.got)
		if !slices.Equal(mask, c.mask) || r.cut != c.cut || (err == nil) != (c.mask != nil) || err != nil && !errors.Is(err, errWrongRow) {
			t.Errorf("%v: %v, %v, %d cut", c.got, mask, err, r.cut)
		}
	}
	r.has = make([]float32, 5)
	if mask, err := r.check(0, r.has); err != nil || !slices.Equal(mask, all) || r.cut != 0 {
		t.Errorf("zeros: %v, %v", mask, err)
	}
}
