package graphs

import (
	"context"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
)

// FromFile builds the graph of a libsvm or libffm file, see
// [dataset.ReadFile].
func FromFile(ctx context.Context, path string, o dataset.Options) (*graph.Graph, error) {
	var b graph.Builder
	err := dataset.ReadFile(ctx, path, o, b.Add)
	if err != nil {
		return nil, err
	}
	return b.Build(ctx)
}
