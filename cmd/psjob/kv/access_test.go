package kv

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

func TestAccessLog(t *testing.T) {
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
		require.NoError(t, l.WriteFile(path, 1))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		wanted := "# worker 1\n"
		for _, key := range slices.Sorted(maps.Keys(want)) {
			c := want[key]
			wanted += fmt.Sprintln(key, c.Pushes, c.PushBytes, c.Pulls, c.PullBytes)
		}
		if string(text) != wanted {
			t.Fatalf("wrote %q, want %q", text, wanted)
		}
	})
}
