package plan

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

// TestWriterEqualsWrite writes the same placements at once and key by key.
func TestWriterEqualsWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, owner := uint64(0), int32(0)
		var keys []uint64
		var owners []int32
		for _, streak := range rapid.SliceOfN(rapid.IntRange(1, 600), 1, 40).Draw(t, "streaks") {
			key += rapid.Uint64Range(1, 3).Draw(t, "gap")
			owner = rapid.Int32Range(0, 2).Draw(t, "owner")
			for range streak {
				keys, owners = append(keys, key), append(owners, owner)
				key++
			}
		}
		p := require.Value(NewPlacement(owners, func(p int) uint64 { return keys[p] }, 3, func(id uint64) (uint64, error) { return id, nil }))(t)
		var want, got bytes.Buffer
		require.NoError(t, WritePlacement(&want, p))
		w := require.Value(NewPlacementWriter(&got, &Placement{K: 3, Server: []int{0, 1, 2}}))(t)
		for i, key := range keys {
			require.NoError(t, w.Add(key, owners[i]))
		}
		require.NoError(t, w.Close())
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
			w := require.Value(NewPlacementWriter(&bytes.Buffer{}, &Placement{K: 1, Server: []int{0}}))(t)
			require.NoError(t, w.Add(5, 0))
			if err := w.Add(tc.key, tc.owner); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}
