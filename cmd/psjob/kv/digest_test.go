package kv

import (
	"math"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// The digest tells keys and values apart to the last bit, whatever the order in
// which they came.
func TestDigestTellsKeysAndValuesApart(t *testing.T) {
	digest := func(keys []uint64, vals []float32) string {
		s := newStore(t, StoreSettings{Rule: "add"})
		for i := range keys {
			require.NoError(t, s.Push(0, keys[i:i+1], vals[i:i+1], nil))
		}
		return s.Digest()
	}
	a := digest([]uint64{3, 9}, []float32{1, 2})
	if b := digest([]uint64{9, 3}, []float32{2, 1}); a != b {
		t.Error("the order in which keys came changes the digest")
	}
	for _, other := range []string{
		digest([]uint64{3, 9}, []float32{1, math.Nextafter32(2, 3)}),
		digest([]uint64{3, 8}, []float32{1, 2}),
		digest([]uint64{3, 9}, []float32{2, 1}),
	} {
		if a == other {
			t.Error("another store has the same digest")
		}
	}
}

// What a synchronous store has summed but not applied yet counts.
func TestDigestOfPendingSums(t *testing.T) {
	s := newStore(t, StoreSettings{Rule: "sgd", LearningRate: 1, Synchronous: true})
	empty := s.Digest()
	require.NoError(t, s.Push(1, []uint64{5}, []float32{0.5}, nil))
	pushed := s.Digest()
	if pushed == empty {
		t.Error("a push changes nothing")
	}
	got, err := s.Pull(9, []uint64{5}, nil, nil)
	if err != nil || len(got) != 1 || got[0] != -0.5 || s.Digest() != pushed {
		t.Errorf("after the digest the value is %v, %v", got, err)
	}
}
