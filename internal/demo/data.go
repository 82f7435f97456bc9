package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/psidecar/psidecar/planner/dataset"
)

// The generated data are like clicks on the ads of several regions: most features of a sample,
// such as shops and places, occur in one region, and the rest everywhere.
const (
	samples  = 12_000
	features = 27_000 // of all regions together, from id 1
	common   = 3_000  // that occur everywhere, behind those
	regions  = 16
	words    = 75  // of a sample, some of them the same
	local    = 0.7 // share of a sample's words that are of its region
)

// generate writes training data that a linear model can learn, from a fixed seed, so that runs
// can be compared; and a map of its features to keys, spread over all servers in their order, so
// that a region is a stretch of the heatmap.
func (o *Options) generate(dir string) error {
	o.Data = filepath.Join(dir, "clicks.libsvm")
	keys := filepath.Join(dir, "keys")
	o.keyMap = "file:" + keys
	const all = features + common
	err := errors.Join(write(o.Data, func(w io.Writer) error {
		_, err := dataset.WriteLibsvm(w, clicks())
		return err
	}), write(keys, func(w io.Writer) error {
		for id := uint64(1); id <= all; id++ {
			if _, err := fmt.Fprintln(w, id, (id-1)*(math.MaxUint64/all)); err != nil {
				return err
			}
		}
		return nil
	}))
	if err != nil {
		return fmt.Errorf("making the data: %w", err)
	}
	return nil
}

// write writes a file.
func write(path string, content func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	return errors.Join(content(w), w.Flush(), f.Close())
}

// clicks yields the samples. Half of the features, with odd ids, speak for a click.
func clicks() iter.Seq[dataset.SyntheticRow] {
	const each = features / regions
	r := rand.New(rand.NewPCG(1, 2))
	ofRegion, ofAll := rand.NewZipf(r, 1.05, 20, each-1), rand.NewZipf(r, 1.05, 5, common-1)
	return func(yield func(dataset.SyntheticRow) bool) {
		for range samples {
			region := uint64(r.IntN(regions))
			// A sample leans to one side, so that its label can be learned.
			click := uint64(r.IntN(2))
			var row dataset.SyntheticRow
			for range words {
				id := 1 + features + ofAll.Uint64()
				if r.Float64() < local {
					id = 1 + region*each + ofRegion.Uint64()
				}
				if r.Float64() < 0.3 {
					id = id&^1 | click
				}
				row.IDs = append(row.IDs, min(max(id, 1), features+common))
			}
			slices.Sort(row.IDs)
			row.IDs = slices.Compact(row.IDs)
			row.Values = slices.Repeat([]float32{0.12}, len(row.IDs))
			row.Label = 2*float64(click) - 1
			if !yield(row) {
				return
			}
		}
	}
}
