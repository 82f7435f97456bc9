package prerun

import (
	"context"
	"fmt"
	"os"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/partition"
)

// HashOptions configure how rows are hashed.
type HashOptions = dataset.HashOptions

// DefaultHashBits is the default number of bits of a hashed feature's code.
const DefaultHashBits = dataset.DefaultHashBits

// A HashTask hashes training data and reports what that costs, as psidecar hash does.
type HashTask struct {
	// Input has the options in Hash.
	Input     Input
	K         int // machines, for the report on traffic
	Seed      uint64
	Algorithm Algorithm // for the report on traffic
	// Out is the file for the hashed data; "" for none.
	Out string
}

// Run reads and hashes the data, measures both sides and writes the hashed set. It fails before the
// work begins if Out cannot be written; errors name the flag --out.
func (t *HashTask) Run(ctx context.Context) (*HashReport, error) {
	if t.Out != "" {
		if err := TryFile(t.Out); err != nil {
			return nil, fmt.Errorf("--out: %w", err)
		}
	}
	// In memory as a whole: both sides are partitioned, and a model is trained on each in several
	// passes.
	rows, err := dataset.Load(ctx, t.Input.Path, dataset.Options{Progress: t.Input.Progress})
	if err != nil {
		return nil, err
	}
	report, hashed, err := CompareHashed(ctx, rows, *t.Input.Hash, t.Algorithm, partition.Options{K: t.K, Seed: t.Seed})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Input.Path, err)
	}
	if t.Out != "" {
		if err := writeHashed(t.Out, hashed); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// A HashSchemeError says that a hashing scheme does not exist.
type HashSchemeError struct{ error }

// ParseHash parses and checks how rows are to be hashed. If the scheme is unknown the error is a
// [HashSchemeError].
func ParseHash(scheme string, bins, bits int, seed uint64) (*HashOptions, error) {
	o := &HashOptions{Bins: bins, Bits: bits, Seed: seed}
	var err error
	if o.Scheme, err = dataset.ParseHashScheme(scheme); err != nil {
		return nil, HashSchemeError{err}
	}
	_, err = dataset.NewHasher(*o)
	return o, err
}

// writeHashed writes rows to a file as libsvm text.
func writeHashed(path string, rows *dataset.Rows) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("creating --out: %w", err)
	}
	if err := WriteRows(file, rows); err != nil {
		file.Close()
		return fmt.Errorf("writing --out %s: %w", path, err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("writing --out %s: %w", path, err)
	}
	return nil
}
