package prerun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A HashReport says what hashing does to a data set (DW23 section 6.2): to its size, to what moves
// in a step, and to the accuracy of a model trained on it.
type HashReport struct {
	Scheme string     `json:"scheme"`
	Bins   int        `json:"bins"`
	Bits   int        `json:"bits"`
	Before HashedSide `json:"before"`
	After  HashedSide `json:"after"`
}

// A HashedSide describes a data set before or after hashing.
type HashedSide struct {
	Parameters int   `json:"parameters"`
	Edges      int64 `json:"edges"`
	TextBytes  int64 `json:"text_bytes"` // as libsvm text
	// Report judges a partition of this side, and has the random baseline for it.
	Report *Report `json:"partition"`
	// Accuracy is nil, null in JSON, if the labels are not of two classes.
	Accuracy *dataset.Accuracy `json:"accuracy"`
}

// CompareHashed hashes a data set, partitions it before and after among o.K machines, and trains a
// model on both. It returns the hashed rows too. rows and the hashed rows are in memory together.
func CompareHashed(ctx context.Context, rows *dataset.Rows, h dataset.HashOptions, al Algorithm, o partition.Options) (*HashReport, *dataset.Rows, error) {
	hashed, err := dataset.HashDataset(ctx, rows, h)
	if err != nil {
		return nil, nil, fmt.Errorf("hashing: %w", err)
	}
	r := &HashReport{Scheme: h.Scheme.String(), Bins: h.Bins, Bits: h.Bits}
	if r.Bits == 0 {
		r.Bits = dataset.DefaultHashBits
	}
	if err := r.Before.measure(ctx, rows, al, o); err != nil {
		return nil, nil, fmt.Errorf("before hashing: %w", err)
	}
	if err := r.After.measure(ctx, hashed, al, o); err != nil {
		return nil, nil, fmt.Errorf("after hashing: %w", err)
	}
	return r, hashed, nil
}

// measure sets everything about one side: it builds the graph, partitions it, judges that beside a
// random partition, measures the text, and trains a model. Accuracy stays nil if no model can be
// trained.
func (s *HashedSide) measure(ctx context.Context, rows *dataset.Rows, al Algorithm, o partition.Options) error {
	var b graph.Builder
	if err := b.Add(rows); err != nil {
		return err
	}
	g, err := b.Build(ctx)
	if err != nil {
		return err
	}
	s.Parameters, s.Edges = g.Params(), g.Edges()
	a, cost, err := Run(ctx, g, al, o)
	if err != nil {
		return err
	}
	// Each side has a baseline of its own: hashing changes what a random partition moves as well.
	random, err := RandomBaseline(ctx, g, o)
	if err != nil {
		return err
	}
	s.Report = Judge(g, a, o, random)
	s.Report.Algorithm, s.Report.Seconds = al.Name, cost.Took().Seconds()
	// The size is that of the text which WriteRows would write, also for the side that was read
	// from a file: numbers there may be written with more digits.
	var size byteCount
	if err := WriteRows(&size, rows); err != nil {
		return err
	}
	s.TextBytes = int64(size)
	accuracy, err := dataset.Evaluate(ctx, rows, o.Seed)
	switch {
	// The rest of the report is still of use.
	case errors.Is(err, dataset.ErrNotTwoClasses):
	case err != nil:
		return fmt.Errorf("training: %w", err)
	default:
		s.Accuracy = &accuracy
	}
	return nil
}

// A byteCount is a writer that only counts, to learn the size of a text without storing it.
type byteCount int64

func (c *byteCount) Write(p []byte) (int, error) {
	*c += byteCount(len(p))
	return len(p), nil
}

// WriteRows writes a data set as libsvm text.
func WriteRows(w io.Writer, rows *dataset.Rows) error {
	out := dataset.NewWriter(w)
	for r := range rows.Len() {
		ids, values := rows.Features(r)
		if err := out.Row(rows.Label[r], ids, values); err != nil {
			return err
		}
	}
	return out.Flush()
}

// Table prints the report for people, and explains it if hashing has made the data larger.
func (r *HashReport) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s, %d bins of %d bits\tbefore\tafter\tafter/before\t\n", r.Scheme, r.Bins, r.Bits)
	line := func(name string, before, after float64) {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.3f\t\n", name, before, after, ratio(after, before))
	}
	// Both sides were partitioned by the same algorithm, so its name labels one line for both.
	b, a := r.Before, r.After
	line("parameters", float64(b.Parameters), float64(a.Parameters))
	line("nonzeros", float64(b.Edges), float64(a.Edges))
	line("libsvm text, bytes", float64(b.TextBytes), float64(a.TextBytes))
	line("busiest machine, random", b.Report.Random.Max, a.Report.Random.Max)
	line("all machines, random", b.Report.Random.Total, a.Report.Random.Total)
	line("busiest machine, "+b.Report.Algorithm, float64(b.Report.Traffic.Max), float64(a.Report.Traffic.Max))
	line("all machines, "+b.Report.Algorithm, float64(b.Report.Traffic.Total), float64(a.Report.Traffic.Total))
	if b.Accuracy == nil {
		fmt.Fprintf(t, "accuracy\tlabels are not of two classes\t\t\t\n")
	} else {
		fmt.Fprintf(t, "accuracy, training rows\t%.4f\t%.4f\t%.3f\t\n", b.Accuracy.Train, a.Accuracy.Train, ratio(a.Accuracy.Train, b.Accuracy.Train))
		fmt.Fprintf(t, "accuracy, test rows\t%.4f\t%.4f\t%.3f\t\n", b.Accuracy.Test, a.Accuracy.Test, ratio(a.Accuracy.Test, b.Accuracy.Test))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	// Hashing makes rows of equal length, which pays only for data whose rows are longer.
	if a.Edges >= b.Edges {
		_, err := fmt.Fprintf(w, "\nEach row has an entry for every bin, and had %.0f on average before: fewer bins make this set smaller.\n", float64(b.Edges)/float64(b.Report.Samples))
		return err
	}
	return nil
}
