package main

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/page/draw"
)

// newHeatmapCommand returns psidecar heatmap. The agent or planner checks the query; parameters
// that are not given are left out of it, so that defaults are its own.
func newHeatmapCommand(e env) *cobra.Command {
	var q client.HeatmapQuery
	var agent, image, namesFile string
	var width int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "heatmap",
		Short: "Show key accesses by worker or over time",
		Long: `Show which worker of a job uses which keys, as counted by an agent or planner:
in the terminal, as data with --json, or as an image with --png. With --by time,
each row is a time interval, for all workers or those given by --workers.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case q.Blocks < 1:
				return cli.Usagef("--blocks %d: want 1 or more", q.Blocks)
			case q.By != "worker" && q.By != "time":
				return cli.Usagef("--by %s: want worker or time", q.By)
			// Refused rather than ignored: the picture would not be the one that was asked for.
			case q.By == "worker" && (len(q.Workers) > 0 || cmd.Flags().Changed("rows")):
				return cli.Usagef("--workers and --rows are for --by time: by worker, each has a row")
			}
			// Before the agent is asked, so that a mistake in the file costs nothing.
			called, err := openNames(namesFile)
			if err != nil {
				return err
			}
			h, err := client.FetchHeatmap(cmd.Context(), agent, &q)
			if err != nil {
				return err
			}
			// Names of --names here come before those that the agent has.
			h.Call(called.Map())
			if image != "" {
				if err := cli.WriteFile("--png", image, func(w io.Writer) error { return draw.PNG(w, h) }); err != nil {
					return err
				}
			}
			switch {
			case asJSON:
				return json.NewEncoder(e.stdout).Encode(h)
			// An image and a drawing of the same would be too much.
			case image != "":
				return nil
			}
			// --width takes precedence, in pipes and files too.
			columns, isTerminal := cli.Columns(e.bareOut)
			if width > 0 {
				columns = width
			}
			colours := draw.NoColours
			if isTerminal {
				colours = draw.ColoursOf(e.lookup)
			}
			client.CleanHeatmap(&h) // the colours are not to be
			return draw.Terminal(e.bareOut, h, columns, colours)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&agent, "agent", client.AgentURL, "URL of the agent or planner")
	flags.StringVar(&q.Job, "job", "", "job, by name or scheduler host:port; may be omitted if there is only one")
	flags.StringVar(&q.Measure, "measure", "", "what to count: accesses (default), pulls, pushes, bytes, pulled_bytes or pushed_bytes")
	flags.StringVar(&q.By, "by", "worker", "meaning of a row: worker, or time (an interval of at least ten seconds)")
	flags.IntVar(&q.Rows, "rows", 40, "with --by time: maximum number of time intervals, 1 to 120")
	flags.StringSliceVar(&q.Workers, "workers", nil, "with --by time: only these workers (default: all)")
	flags.IntVar(&q.Blocks, "blocks", 256, "maximum number of key blocks")
	flags.StringVar(&q.First, "first", "", "lowest key to show")
	flags.StringVar(&q.Last, "last", "", "highest key to show")
	flags.StringVar(&q.From, "from", "", "start of the time range: Unix time in seconds, or if negative, seconds before now")
	flags.StringVar(&q.To, "to", "", "end of the time range, like --from")
	flags.IntVar(&width, "width", 0, "width in columns (default: the terminal's)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	addKeyNames(cmd, &namesFile)
	flags.StringVar(&image, "png", "", "write a PNG image to this file")
	return cmd
}
