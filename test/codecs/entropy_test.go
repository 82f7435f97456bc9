package codecs

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// TestEntropyOfSums prints how much information the values of TestDividedData's pushes have one by
// one, and as sums of all workers' pushes: the entropy of which value each key has, and 4 bytes for
// each different value, or 4 bytes for each value if that is less, by message. It bounds what a lossless code of single messages can save,
// whatever the share of keys in common.
func TestEntropyOfSums(t *testing.T) {
	require.Measurement(t)
	workers, servers := setting("WORKERS", 4), setting("SERVERS", 2)
	for _, name := range []string{"rcv1-excerpt.libsvm.xz", "criteo-80k.libsvm.xz"} {
		t.Run(strings.TrimSuffix(name, ".libsvm.xz"), func(t *testing.T) {
			single, sums := entropyOfPushes(t, divide(t, name, workers), workers, servers)
			const steps = moreSteps - fewSteps
			t.Logf("%d workers, %d servers: one by one %.1f values and %.2f kB per step, sums %.1f%% of the values and %.1f%% of the bytes", workers, servers,
				single.values/steps, single.bytes/steps/1e3, 100*sums.values/single.values, 100*sums.bytes/single.bytes)
		})
	}
}

// information is how many values there are, and how many bytes they take at least.
type information struct{ values, bytes float64 }

// add adds the values of one message.
func (n *information) add(values []float32) {
	count := map[float32]int{}
	for _, v := range values {
		count[v]++
	}
	bytes := 4 * float64(len(count))
	for _, c := range count {
		bytes -= float64(c) * math.Log2(float64(c)/float64(len(values))) / 8
	}
	n.values += float64(len(values))
	n.bytes += min(bytes, 4*float64(len(values)))
}

// entropyOfPushes trains as the job does, in step, and adds up the pushes of all workers to each
// server, and the sums of these.
func entropyOfPushes(t *testing.T, dir string, workers, servers int) (single, sums information) {
	keyMap, err := dataset.ParseKeyMap("spread")
	if err != nil {
		t.Fatal(err)
	}
	models, next := make([]*model.Linear, workers), make([]func() []int32, workers)
	for rank := range models {
		set, err := model.LoadSparse(t.Context(), dir, model.Share{Index: rank, Of: workers}, keyMap, true)
		if err != nil {
			t.Fatal(err)
		}
		models[rank], next[rank] = model.NewLinear(set), train.Batches(set.Len(), dividedBatch, 1, rank)
	}
	params := map[uint64]float32{}
	for step := range moreSteps {
		sum := map[uint64]float32{}
		for rank, m := range models {
			batch := next[rank]()
			keys := m.Groups(batch)[0].Keys
			w, grad := make([]float32, len(keys)), make([]float32, len(keys))
			for i, key := range keys {
				w[i] = params[key]
			}
			m.Gradient(batch, [][]float32{w}, [][]float32{grad}, &model.Tally{})
			for i, key := range keys {
				grad[i] /= -dividedBatch // the mean, at a learning rate of 1
				sum[key] += grad[i]
			}
			if step >= fewSteps {
				single.addByServer(keys, func(i int) float32 { return grad[i] }, servers)
			}
		}
		keys := make([]uint64, 0, len(sum))
		for key, v := range sum {
			params[key] += v
			keys = append(keys, key)
		}
		slices.Sort(keys)
		if step >= fewSteps {
			sums.addByServer(keys, func(i int) float32 { return sum[keys[i]] }, servers)
		}
	}
	return single, sums
}

// addByServer adds a push, of which each server gets a message.
func (n *information) addByServer(keys []uint64, value func(i int) float32, servers int) {
	from := 0
	for rank := range servers {
		_, end := pslite.KeyRange(rank, servers)
		to, _ := slices.BinarySearch(keys, end)
		var values []float32
		for i := from; i < to; i++ {
			values = append(values, value(i))
		}
		n.add(values)
		from = to
	}
}
