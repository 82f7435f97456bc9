package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/prerun"
)

// hashFlags are the flags of psidecar hash.
type hashFlags struct {
	input, out, scheme, algorithm string
	bins, bits, k                 int
	seed                          uint64
	json                          bool
}

// newHashCommand returns psidecar hash, which reads and writes files only.
func newHashCommand(e env) *cobra.Command {
	var f hashFlags
	cmd := &cobra.Command{
		Use:   "hash --input FILE --hash-bins BINS",
		Short: "Hash training data to fewer parameters and report the loss",
		Long: `Read libsvm or libffm text and hash every row to one feature per bin, by
one-permutation hashing (oph, uses only which features a row has) or bin-wise
consistent weighted sampling (bcws, also uses their values). Report the size,
the traffic between k machines and the accuracy of a logistic regression,
before and after hashing. --out writes the hashed data as libsvm text.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.input, "input", "", "input data, a libsvm or libffm file")
	flags.IntVar(&f.bins, "hash-bins", 0, "number of features of a hashed row")
	flags.IntVar(&f.bits, "hash-bits", prerun.DefaultHashBits, "bits per hashed feature")
	flags.StringVar(&f.scheme, "hash-scheme", "oph", "hashing scheme: oph for sets, bcws for weights")
	flags.StringVar(&f.out, "out", "", "output file for the hashed data")
	flags.IntVarP(&f.k, "machines", "k", 8, "number of machines for the traffic report")
	flags.StringVar(&f.algorithm, "algorithm", "dppa", "partitioning algorithm for the traffic report: "+strings.Join(prerun.Algorithms(), ", "))
	flags.Uint64Var(&f.seed, "seed", 1, "random seed of hash functions, partitioner and train/test split")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

// run hashes the input and prints the report. Everything that the flags can have wrong is found
// before the input, which may take minutes, is read.
func (f *hashFlags) run(ctx context.Context, e env) error {
	if f.input == "" {
		return cli.Usagef("--input: name a libsvm file")
	}
	if f.k < 1 {
		return cli.Usagef("-k %d: want 1 or more machines", f.k)
	}
	o, err := hashOptions(f.scheme, f.bins, f.bits, f.seed)
	if err != nil {
		return err
	}
	algorithms, err := prerun.FindAlgorithms(f.algorithm, false)
	if err != nil {
		return cli.Usagef("--algorithm: %w", err)
	}
	t := prerun.HashTask{
		Input: prerun.Input{Path: f.input, Hash: o, Progress: cli.NewProgress(e.bareErr, "reading")},
		K:     f.k, Seed: f.seed, Algorithm: algorithms[0], Out: f.out,
	}
	// Reports are printed at the end, when before and after can be compared.
	report, err := t.Run(ctx)
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(e.stdout).Encode(report)
	}
	return report.Table(e.stdout)
}

// hashOptions reads --hash-scheme, --hash-bins and --hash-bits, for psidecar hash and
// partition. Its errors are usage errors that name the flag at fault.
func hashOptions(scheme string, bins, bits int, seed uint64) (*prerun.HashOptions, error) {
	o, err := prerun.ParseHash(scheme, bins, bits, seed)
	var unknown prerun.HashSchemeError
	switch {
	case errors.As(err, &unknown):
		return nil, cli.Usagef("--hash-scheme: %w", err)
	case err != nil:
		return nil, cli.Usagef("--hash-bins, --hash-bits: %w", err)
	}
	return o, nil
}
