package codecs

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

// TestEntropyOfSums prints how many bytes the values of TestDividedData's pushes take at least one
// by one, and as sums of all workers' pushes, by a code that has a list of a message's different
// values and treats its keys independently, as compact does. Each message counts with 4 bytes for
// each different value and the entropy of which one each key has, or with 4 bytes for each key if
// that is less.
func TestEntropyOfSums(t *testing.T) {
	require.Measurement(t)
	workers, servers := setting("WORKERS", 4), setting("SERVERS", 2)
	for _, name := range []string{"rcv1-excerpt.libsvm.xz", "criteo-80k.libsvm.xz"} {
		t.Run(strings.TrimSuffix(name, ".libsvm.xz"), func(t *testing.T) {
			d := divided{workers: workers, servers: servers, dir: divide(t, name, workers)}
			single, sums := d.entropy(t)
			if used := d.count(t, moreSteps).minus(d.count(t, fewSteps)); single.values != float64(used.all) || sums.values != float64(used.distinct) {
				t.Errorf("%v values one by one and %v in sums, the job's lists have %d keys and %d different ones", single.values, sums.values, used.all, used.distinct)
			}
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

// entropy trains as the job does, in step, and adds up the pushes of all workers to each server, and
// the sums of these.
func (d divided) entropy(t *testing.T) (single, sums information) {
	keyMap := require.Value(dataset.ParseKeyMap("spread"))(t)
	models, next := make([]*model.Linear, d.workers), make([]func() []int32, d.workers)
	for rank := range models {
		set := require.Value(model.LoadSparse(t.Context(), d.dir, model.Share{Index: rank, Of: d.workers}, keyMap, true))(t)
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
				single.addByServer(keys, grad, d.servers)
			}
		}
		keys := slices.Sorted(maps.Keys(sum))
		values := make([]float32, len(keys))
		for i, key := range keys {
			values[i] = sum[key]
			params[key] += values[i]
		}
		if step >= fewSteps {
			sums.addByServer(keys, values, d.servers)
		}
	}
	return single, sums
}

// addByServer adds a push, of which each server gets a message.
func (n *information) addByServer(keys []uint64, values []float32, servers int) {
	for rank := range servers {
		_, end := pslite.KeyRange(rank, servers)
		to, _ := slices.BinarySearch(keys, end)
		n.add(values[:to])
		keys, values = keys[to:], values[to:]
	}
}
