package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/algorithm"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/hashing"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
)

// hashFlags are the flags of `psidecar hash`.
type hashFlags struct {
	input, out, scheme, algorithm string
	bins, bits, k                 int
	seed                          uint64
	json                          bool
}

func newHashCommand(e env) *cobra.Command {
	var f hashFlags
	cmd := &cobra.Command{
		Use:   "hash --input FILE --hash-bins BINS",
		Short: "Hash training data to fewer parameters, and say what that costs",
		Long: `Reads libsvm or libffm text and hashes every row: to one feature a bin by
one-permutation hashing (oph, looks at which features a row has) or bin-wise
consistent weighted sampling (bcws, at their values as well). Reports size,
traffic between k machines and the accuracy of a logistic regression, before
and after. --out writes the hashed set as libsvm text.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.input, "input", "", "the data: a libsvm or libffm file")
	flags.IntVar(&f.bins, "hash-bins", 0, "features of a hashed row")
	flags.IntVar(&f.bits, "hash-bits", hashing.DefaultBits, "bits of a hashed feature's code")
	flags.StringVar(&f.scheme, "hash-scheme", "oph", "oph for sets, bcws for weights")
	flags.StringVar(&f.out, "out", "", "file for the hashed set")
	flags.IntVarP(&f.k, "machines", "k", 8, "number of machines for the report on traffic")
	flags.StringVar(&f.algorithm, "algorithm", "dppa", "partitioner for the report on traffic: "+strings.Join(algorithm.Names(), ", "))
	flags.Uint64Var(&f.seed, "seed", 1, "of the hash functions, the partitioner and the split into training and test rows")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (f *hashFlags) run(ctx context.Context, e env) error {
	if f.input == "" {
		return cli.Usagef("--input: name a libsvm file")
	}
	if f.k < 1 {
		return cli.Usagef("-k %d: want 1 or more machines", f.k)
	}
	o := hashing.Options{Bins: f.bins, Bits: f.bits, Seed: f.seed}
	var err error
	if o.Scheme, err = hashing.ParseScheme(f.scheme); err != nil {
		return cli.Usagef("--hash-scheme: %w", err)
	}
	if _, err := hashing.New(o); err != nil {
		return cli.Usagef("--hash-bins, --hash-bits: %w", err)
	}
	al, err := algorithm.Find(f.algorithm)
	if err != nil {
		return cli.Usagef("--algorithm: %w", err)
	}
	if f.out != "" {
		if err := prerun.TryFile(f.out); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	rows, err := dataset.Load(ctx, f.input, dataset.Options{Progress: cli.NewProgress(e.bareErr, "reading")})
	if err != nil {
		return err
	}
	report, hashed, err := prerun.CompareHashed(ctx, rows, o, al, partition.Options{K: f.k, Seed: f.seed})
	if err != nil {
		return fmt.Errorf("%s: %w", f.input, err)
	}
	if f.out != "" {
		if err := writeHashed(f.out, hashed); err != nil {
			return err
		}
	}
	if f.json {
		return json.NewEncoder(e.stdout).Encode(report)
	}
	return report.Table(e.stdout)
}

func writeHashed(path string, rows *dataset.Rows) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("creating --out: %w", err)
	}
	if err := prerun.WriteRows(file, rows); err != nil {
		file.Close()
		return fmt.Errorf("writing --out %s: %w", path, err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("writing --out %s: %w", path, err)
	}
	return nil
}
