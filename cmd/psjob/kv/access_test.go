package kv

import (
	"bytes"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "accesses")
	rapid.Check(t, func(t *rapid.T) {
		var l AccessLog
		want := make(map[uint64]AccessCounts)
		for range rapid.IntRange(0, 10).Draw(t, "requests") {
			keys := rapid.SliceOfDistinct(rapid.OneOf(rapid.Uint64Range(0, 20), rapid.Uint64()), rapid.ID).Draw(t, "keys")
			slices.Sort(keys)
			width := rapid.IntRange(1, 5).Draw(t, "width")
			var lens []int32
			if rapid.Bool().Draw(t, "variable") {
				for range keys {
					lens = append(lens, int32(rapid.IntRange(0, 1<<20).Draw(t, "length")))
				}
			}
			push := rapid.Bool().Draw(t, "push")
			if push {
				l.Push(keys, width, lens)
			} else {
				l.Pull(keys, width, lens)
			}
			for i, key := range keys {
				size := uint64(width) * 4
				if lens != nil {
					size = uint64(lens[i]) * 4
				}
				c := want[key]
				if push {
					c.Pushes++
					c.PushBytes += size
				} else {
					c.Pulls++
					c.PullBytes += size
				}
				want[key] = c
			}
		}
		if err := l.WriteFile(path, 11, 1); err != nil {
			t.Fatal(err)
		}
		got := make(map[uint64]AccessCounts)
		h, err := ReadAccessFile(path, func(key uint64, c AccessCounts) error { got[key] = c; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if h.Node != 11 || h.Rank != 1 || h.Keys != len(want) {
			t.Fatalf("header %+v for %d keys", h, len(want))
		}
		if !maps.Equal(got, want) {
			t.Fatalf("read %v, want %v", got, want)
		}
	})
}

func FuzzRead(f *testing.F) {
	var l AccessLog
	l.Push([]uint64{1, 5, 9}, 3, nil)
	l.Pull([]uint64{5}, 0, []int32{7})
	var b bytes.Buffer
	if err := l.write(&b, AccessHeader{Format: format, Keys: 3}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, file []byte) {
		n, last := 0, uint64(0)
		h, err := ReadAccess(bytes.NewReader(file), func(key uint64, _ AccessCounts) error {
			if n > 0 && key <= last {
				t.Errorf("key %d after %d", key, last)
			}
			n, last = n+1, key
			return nil
		})
		if err == nil && n != h.Keys {
			t.Errorf("%d keys, header says %d", n, h.Keys)
		}
	})
}

func BenchmarkLog(b *testing.B) {
	keys := make([]uint64, 1_000_000)
	for i := range keys {
		keys[i] = uint64(i) * 1_000_003
	}
	var l AccessLog
	b.ReportAllocs()
	for b.Loop() {
		l.Push(keys, 1, nil)
	}
	b.ReportMetric(float64(b.N*len(keys))/1e6/b.Elapsed().Seconds(), "Mkeys/s")
}
