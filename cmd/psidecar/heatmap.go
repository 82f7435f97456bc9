package main

import (
	"encoding/json"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/draw"
)

// newHeatmapCommand returns psidecar heatmap. The agent or planner checks the query; parameters
// that are not given are left out of it, so that defaults are its own.
func newHeatmapCommand(e env) *cobra.Command {
	var (
		agent, job, measure, image string
		namesFile                  string
		first, last, from, to      string
		by                         string
		workers                    []string
		blocks, rows, width        int
		asJSON                     bool
	)
	cmd := &cobra.Command{
		Use:   "heatmap",
		Short: "Show key accesses by worker or over time",
		Long: `Show which worker of a job uses which keys, as counted by an agent or planner:
in the terminal, as data with --json, or as an image with --png. With --by time,
each row is a time interval, for all workers or those given by --workers.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case by != "worker" && by != "time":
				return cli.Usagef("--by %s: want worker or time", by)
			// Refused rather than ignored: the picture would not be the one that was asked for.
			case by == "worker" && (len(workers) > 0 || cmd.Flags().Changed("rows")):
				return cli.Usagef("--workers and --rows are for --by time: by worker, each has a row")
			}
			// Before the agent is asked, so that a mistake in the file costs nothing.
			called, err := openNames(namesFile)
			if err != nil {
				return err
			}
			query := url.Values{}
			for name, value := range map[string]string{
				"job": job, "measure": measure, "first": first, "last": last, "from": from, "to": to,
			} {
				if value != "" {
					query.Set(name, value)
				}
			}
			// Always sent: the default is that of this command.
			query.Set("blocks", strconv.Itoa(blocks))
			if by == "time" {
				query.Set("by", by)
				query.Set("rows", strconv.Itoa(rows))
				query.Set("workers", strings.Join(workers, ","))
			}
			var h page.Heatmap
			if err := client.Get(cmd.Context(), agent, "/api/v1/heatmap", query, &h); err != nil {
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
			columns, colours := terminalOf(e)
			if width > 0 {
				columns = width
			}
			clean(&h) // the colours are not to be
			return draw.Terminal(e.bareOut, h, columns, colours)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&agent, "agent", client.AgentURL, "URL of the agent or planner")
	flags.StringVar(&job, "job", "", "job, given by its scheduler's host:port; may be omitted if there is only one")
	flags.StringVar(&measure, "measure", "", "what to count: accesses (default), pulls, pushes, bytes, pulled_bytes or pushed_bytes")
	flags.StringVar(&by, "by", "worker", "meaning of a row: worker, or time (an interval of at least ten seconds)")
	flags.IntVar(&rows, "rows", 40, "with --by time: maximum number of time intervals, 1 to 120")
	flags.StringSliceVar(&workers, "workers", nil, "with --by time: only these workers (default: all)")
	flags.IntVar(&blocks, "blocks", 256, "maximum number of key blocks")
	flags.StringVar(&first, "first", "", "lowest key to show")
	flags.StringVar(&last, "last", "", "highest key to show")
	flags.StringVar(&from, "from", "", "start of the time range: Unix time in seconds, or if negative, seconds before now")
	flags.StringVar(&to, "to", "", "end of the time range, like --from")
	flags.IntVar(&width, "width", 0, "width in columns (default: the terminal's)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	addKeyNames(cmd, &namesFile)
	flags.StringVar(&image, "png", "", "write a PNG image to this file")
	return cmd
}

// clean escapes all text of a heatmap that comes from a job or an agent, for a terminal that is
// written to without the filter of [env]'s stdout: drawing needs escape sequences, which the
// filter would escape as well.
func clean(h *page.Heatmap) {
	h.Job, h.Measure = cli.Clean(h.Job), page.Measure(cli.Clean(string(h.Measure)))
	for i, name := range h.Workers {
		h.Workers[i] = cli.Clean(name)
	}
	for i := range h.Blocks {
		b := &h.Blocks[i]
		b.FirstText, b.LastText, b.Name = cli.Clean(b.FirstText), cli.Clean(b.LastText), cli.Clean(b.Name)
	}
}

// terminalOf returns how many columns standard output has and which colours it can show. For a
// pipe or file it is 80 columns without colours, so that the output does not depend on a
// window.
func terminalOf(e env) (columns int, colours draw.Colours) {
	f, ok := e.bareOut.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 80, draw.NoColours
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns < 20 {
		columns = 80
	}
	return columns, draw.ColoursOf(e.lookup)
}
