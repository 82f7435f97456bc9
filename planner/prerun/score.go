package prerun

import (
	"context"
	"fmt"
	"os"

	"github.com/psidecar/psidecar/planner/partition"
)

// Score judges an assignment file, whichever program has made it, for k machines. It does not
// refuse one that violates the limits of our partitioners: its figures show how uneven it is.
func Score(ctx context.Context, in Input, assignment string, k int) (*Report, error) {
	// Opened before the graph is built, so that a wrong name is reported at once.
	file, err := os.Open(assignment)
	if err != nil {
		return nil, fmt.Errorf("opening --assignment: %w", err)
	}
	defer file.Close()
	g, err := in.Graph(ctx)
	if err != nil {
		return nil, err
	}
	a, err := partition.ReadAssignment(file, assignment, g.Samples(), g.Params(), k)
	if err != nil {
		return nil, err
	}
	// Only the number of machines is checked: a foreign assignment has no other constraints of
	// ours.
	o := partition.Options{K: k}
	if err := o.Validate(g); err != nil {
		return nil, fmt.Errorf("%s: %w", in.Path, err)
	}
	random, err := RandomBaseline(ctx, g, o)
	if err != nil {
		return nil, err
	}
	r := Judge(g, a, o, random)
	r.Algorithm = "given"
	return r, nil
}
