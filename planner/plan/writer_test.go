package plan

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// TestWriterEqualsWrite writes the same placements at once and key by key.
func TestWriterEqualsWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, owner := uint64(0), int32(0)
		var row []uint64
		a := &partition.Assignment{Samples: []int32{0}}
		for _, streak := range rapid.SliceOfN(rapid.IntRange(1, 600), 1, 40).Draw(t, "streaks") {
			key += rapid.Uint64Range(1, 3).Draw(t, "gap")
			owner = rapid.Int32Range(0, 2).Draw(t, "owner")
			for range streak {
				row = append(row, key)
				a.Params = append(a.Params, owner)
				key++
			}
		}
		g, err := graph.FromRows([][]uint64{row})
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPlacement(g, a, 3, func(id uint64) (uint64, error) { return id, nil })
		if err != nil {
			t.Fatal(err)
		}
		var want, got bytes.Buffer
		if err := WritePlacement(&want, p); err != nil {
			t.Fatal(err)
		}
		w, err := NewPlacementWriter(&got, &Placement{K: 3, Server: []int{0, 1, 2}})
		if err != nil {
			t.Fatal(err)
		}
		for i, key := range row {
			if err := w.Add(key, a.Params[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("got\n%s\nwant\n%s", got.Bytes(), want.Bytes())
		}
	})
}

func TestWriterErrors(t *testing.T) {
	for _, tc := range []struct {
		name  string
		key   uint64
		owner int32
		want  string
	}{
		{"key again", 5, 0, "key 5 follows key 5"},
		{"last key of all", 1<<64 - 1, 0, "beyond PS-lite's last key"},
		{"owner beyond", 6, 1, "owner 1 of key 6"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, err := NewPlacementWriter(&bytes.Buffer{}, &Placement{K: 1, Server: []int{0}})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Add(5, 0); err != nil {
				t.Fatal(err)
			}
			if err := w.Add(tc.key, tc.owner); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}
