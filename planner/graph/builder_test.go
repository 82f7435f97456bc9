package graph

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func same(a, b *Graph) bool {
	return slices.Equal(a.sampleStart, b.sampleStart) && slices.Equal(a.sampleParams, b.sampleParams) &&
		slices.Equal(a.paramStart, b.paramStart) && slices.Equal(a.paramSamples, b.paramSamples) &&
		slices.Equal(a.features, b.features)
}

// TestBuilderAgreesWithFromRows covers ids that a bitmap numbers, ids that a
// directory numbers, and blocks of both widths.
func TestBuilderAgreesWithFromRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		largest := rapid.SampledFrom([]uint64{5, 100, 1 << 21, math.MaxUint32, math.MaxUint32 + 3, dataset.MaxID}).Draw(t, "largest")
		id := rapid.OneOf(rapid.Uint64Range(0, min(largest, 30)), rapid.Uint64Range(0, largest))
		rows := rapid.SliceOf(rapid.SliceOfDistinct(id, rapid.ID)).Draw(t, "rows")
		want := require.Value(FromRows(rows))(t)
		var b Builder
		for _, row := range rows {
			b.AddRow(row)
		}
		got := require.Value(b.Build(t.Context()))(t)
		if !same(got, want) {
			t.Fatalf("rows %v:\ngot  %+v\nwant %+v", rows, got, want)
		}
	})
}

func TestBuilderAcrossBlocks(t *testing.T) {
	for name, spread := range map[string]uint64{"bitmap": 1, "directory": 1 << 13, "wide directory": 1 << 40} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			var b Builder
			var rows [][]uint64
			for range 3000 {
				var row []uint64
				id := uint64(0)
				for range random.IntN(600) {
					id += 1 + random.Uint64N(50)
					row = append(row, id*spread)
				}
				random.Shuffle(len(row), func(i, j int) { row[i], row[j] = row[j], row[i] })
				rows = append(rows, row)
				b.AddRow(row)
			}
			got := require.Value(b.Build(t.Context()))(t)
			want := require.Value(FromRows(rows))(t)
			if !same(got, want) {
				t.Fatal("the graphs differ")
			}
		})
	}
}

func TestBuilderMergesRepeatedIDs(t *testing.T) {
	var b Builder
	b.AddRow([]uint64{5, 3, 5, 5})
	b.AddRow(nil)
	b.AddRow([]uint64{3, 9, 3})
	got := require.Value(b.Build(t.Context()))(t)
	want := require.Value(FromRows([][]uint64{{3, 5}, {}, {3, 9}}))(t)
	if !same(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestBuildStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b Builder
	b.AddRow([]uint64{1, 2})
	if _, err := b.Build(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestFromRowsRejectsRepeatedIDs(t *testing.T) {
	if _, err := FromRows([][]uint64{{1}, {7, 2, 7}}); err == nil || !strings.Contains(err.Error(), "sample 1: duplicate feature id 7") {
		t.Errorf("got %v", err)
	}
}

// rowsOfText is an endless libsvm text made while it is read.
type rowsOfText struct {
	random *rand.Rand
	rows   int
	id     func(*rand.Rand) uint64
	rest   []byte
}

func (r *rowsOfText) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.rows == 0 {
			return 0, io.EOF
		}
		r.rows--
		r.rest = append(r.rest[:0], '1')
		for field := range int64(100) { // libffm, where ids may repeat
			r.rest = append(strconv.AppendInt(append(r.rest, ' '), field, 10), ':')
			r.rest = strconv.AppendUint(r.rest, r.id(r.random), 10)
			r.rest = append(r.rest, ":1"...)
		}
		r.rest = append(r.rest, '\n')
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// peakHeap runs work and returns the most bytes of heap, garbage included,
// that were in use meanwhile, beyond those before.
func peakHeap(work func()) uint64 {
	heap := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	runtime.GC()
	before := heap()
	stop, result := make(chan struct{}), make(chan uint64)
	go func() {
		peak := before
		for {
			select {
			case <-stop:
				result <- peak
				return
			case <-time.After(200 * time.Microsecond):
				peak = max(peak, heap())
			}
		}
	}()
	work()
	close(stop)
	return <-result - before
}

var idKinds = []struct {
	name string
	id   func(*rand.Rand) uint64
}{
	{"dense ids", func(r *rand.Rand) uint64 { return r.Uint64N(1 << 20) }},
	{"ids of 63 bits", func(r *rand.Rand) uint64 { return dataset.Spread(r.Uint64N(1<<17)) >> 1 }},
	{"ids of 63 bits, four edges a parameter", func(r *rand.Rand) uint64 { return dataset.Spread(r.Uint64N(1<<20)) >> 1 }},
}

func buildFromText(t testing.TB, rows int, id func(*rand.Rand) uint64) *Graph {
	var b Builder
	text := &rowsOfText{random: rand.New(rand.NewPCG(5, 6)), rows: rows, id: id}
	require.NoError(t, dataset.Read(t.Context(), text, "text", dataset.Options{Workers: 2}, b.Add))
	g := require.Value(b.Build(t.Context()))(t)
	return g
}

// TestPeakMemory holds the builder to 24 bytes an edge, the reader's buffers
// and all garbage included.
func TestPeakMemory(t *testing.T) {
	require.Time(t)
	for _, kind := range idKinds {
		t.Run(kind.name, func(t *testing.T) {
			var g *Graph
			peak := peakHeap(func() { g = buildFromText(t, 40_000, kind.id) })
			perEdge := float64(peak) / float64(g.Edges())
			t.Logf("%d edges, %d parameters: peak %.1f bytes an edge", g.Edges(), g.Params(), perEdge)
			if perEdge > 24 {
				t.Errorf("peak of %.1f bytes an edge, want at most 24", perEdge)
			}
		})
	}
}
