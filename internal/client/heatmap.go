package client

import (
	"context"
	"net/url"
	"strconv"
	"strings"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
)

// A HeatmapQuery says which heatmap an agent or planner is asked for. Texts that are empty are
// left out of the request, so that defaults are those of who is asked.
type HeatmapQuery struct {
	Job, Measure          string
	First, Last, From, To string
	Blocks                int
	By                    string // worker or time
	// Rows and Workers are for By time.
	Rows    int
	Workers []string
}

// FetchHeatmap asks an agent or planner for a heatmap.
func FetchHeatmap(ctx context.Context, agent string, q *HeatmapQuery) (h page.Heatmap, err error) {
	query := url.Values{}
	for name, value := range map[string]string{
		"job": q.Job, "measure": q.Measure, "first": q.First, "last": q.Last, "from": q.From, "to": q.To,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	// Always sent: the default is that of the caller.
	query.Set("blocks", strconv.Itoa(q.Blocks))
	if q.By == "time" {
		query.Set("by", q.By)
		query.Set("rows", strconv.Itoa(q.Rows))
		query.Set("workers", strings.Join(q.Workers, ","))
	}
	err = Get(ctx, agent, "/api/v1/heatmap", query, &h)
	return h, err
}

// CleanHeatmap escapes all text of a heatmap that comes from a job or an agent, for a terminal
// that is written to without a [cli.Writer]: drawing needs escape sequences, which that would
// escape as well.
func CleanHeatmap(h *page.Heatmap) {
	h.Job, h.Measure = cli.Clean(h.Job), page.Measure(cli.Clean(string(h.Measure)))
	for i, name := range h.Workers {
		h.Workers[i] = cli.Clean(name)
	}
	for i := range h.Blocks {
		b := &h.Blocks[i]
		b.FirstText, b.LastText, b.Name = cli.Clean(b.FirstText), cli.Clean(b.LastText), cli.Clean(b.Name)
	}
}
