package route

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkSplit is a pull of 10,000 keys of one value that belong to four
// servers: it is split, and the answers are put together. A step's push costs the
// first half of it. Where data and keys were placed together, most of a worker's
// keys are with one server.
func BenchmarkSplit(b *testing.B) {
	b.Run("at random", func(b *testing.B) { benchmarkSplit(b, 0) })
	b.Run("nine tenths with one", func(b *testing.B) { benchmarkSplit(b, 9) })
}

// benchmarkSplit has that many tenths of the keys with the same server.
func benchmarkSplit(b *testing.B, tenths int) {
	const servers, n = 4, 10_000
	rng := rand.New(rand.NewPCG(1, 1))
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = rng.Uint64N(1 << 62)
	}
	slices.Sort(keys)
	table := NewTable(servers)
	var displaced []plan.Range
	for _, k := range keys {
		owner := int32(1)
		if rng.IntN(10) >= tenths {
			owner = rng.Int32N(servers)
		}
		displaced = append(displaced, plan.Range{Keys: plan.One(k), Owner: owner})
	}
	table.Set(displaced)
	r := New(table)
	r.Open(table)
	worker := pslite.WorkerID(0)
	r.AddWorker(worker, &forgetful{})
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Pull = true, true
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, keys), {}}
	values := make([]byte, 4*n)
	b.SetBytes(12 * n)
	b.ReportAllocs()
	for b.Loop() {
		m.Meta.Timestamp++
		if r.Request(worker, 0, &m.Meta, m.Keys(), pslite.DMLC) {
			b.Fatal("a request with displaced keys passes")
		}
		require.NoError(b, r.Take(worker, 0, &m, pslite.DMLC))
		own := r.workers[worker].open[request{0, m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp}].split.own
		for _, o := range r.Out() {
			part := pslite.Message{Meta: m.Meta, Data: [][]byte{o.Frames[1], values[:len(o.Frames[1])/2]}}
			part.Meta.Request, part.Meta.Timestamp = false, own
			require.NoError(b, r.TakeAnswer(o.Server, worker, &part, pslite.DMLC))
		}
		if out := r.Out(); len(out) != 1 || len(out[0].Frames[2]) != len(values) {
			b.Fatal("no whole answer")
		}
	}
}
