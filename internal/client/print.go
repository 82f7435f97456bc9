package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/fleet"
)

// PrintPlans prints what a planner describes: for each job what it has and would move.
func PrintPlans(out io.Writer, d *api.Description, called *page.NameMap) error {
	if len(d.GetJobs()) == 0 {
		_, err := fmt.Fprintln(out, "no job has a plan")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, j := range d.GetJobs() {
		mode := "proposes only"
		switch {
		case j.GetHeld():
			mode = "on hold until one is applied"
		case j.GetActs():
			mode = "carries plans out"
		}
		fmt.Fprintf(w, "job %s: %d servers, %d keys displaced, %s %s\n", j.GetJob(), j.GetServers(), j.GetDisplacedKeys(), j.GetStrategy(), mode)
		if run := plan.Run(j.GetRun()); run.Valid() {
			over := ""
			if !j.GetRunning() {
				over = ", over: no host has connections of this job"
			}
			fmt.Fprintf(w, "run %s, since %s%s\n", run.Short(), run.Began().Format(time.DateTime), over)
		}
		if j.GetLost() != "" {
			fmt.Fprintln(w, j.GetLost())
		}
		if n := len(j.GetEpochs()); n > 0 && j.GetEpochs()[n-1].GetState() == api.Epoch_MOVING && j.GetProxies() == 0 {
			fmt.Fprintln(w, "no proxy that can move keys is connected to the planner")
		}
		if j.GetTrouble() != "" {
			fmt.Fprintf(w, "no new plan: %s\n", j.GetTrouble())
		}
		for _, h := range j.GetHandlers() {
			fmt.Fprintf(w, "server %d: %s %s\n", h.GetServer(), strings.ToLower(h.GetKind().String()), h.GetMessage())
		}
		fmt.Fprintln(w, "epoch\tstate\tkeys\tmoved\tto move\tbusiest host, bytes a step\tpredicted\tactual\treason")
		for _, e := range j.GetEpochs() {
			before, predicted, actual := Busiest(e)
			fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%.0f\t%.0f\t%s\t%s\n", e.GetEpoch(), StateName(e.GetState()), e.GetKeys(), e.GetMovedKeys(),
				e.GetPendingKeys(), before, predicted, bytesOrDash(actual), e.GetReason()+Refusals(e, j.GetJob(), called))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func bytesOrDash(bytes float64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", bytes)
}

// PrintCodecs prints all rules that a planner has, and for each proxy that follows whether it
// has them.
func PrintCodecs(out io.Writer, d *api.CodecsDescription) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(d.GetRules().GetJobs()) == 0 {
		fmt.Fprintln(w, "no rules; the proxies' own flags apply")
	}
	for _, j := range d.GetRules().GetJobs() {
		fmt.Fprintf(w, "job %s: %s\n", j.GetJob(), j.GetRules())
		if j.GetForRun() {
			fmt.Fprintf(w, "  until this run is over; then: %s\n", cmp.Or(j.GetLater(), "none"))
		}
	}
	// These are of what a proxy pushes for several workers together.
	for _, j := range d.GetRules().GetSums() {
		fmt.Fprintf(w, "job %s, sums of a host's pushes: %s\n", j.GetJob(), j.GetRules())
	}
	if len(d.GetFollowers()) == 0 {
		fmt.Fprintln(w, "no proxy follows")
	}
	for _, h := range d.GetFollowers() {
		fmt.Fprintf(w, "%s\t%s\n", h.GetHost(), FollowerState(h, d.GetRules().GetVersion()))
	}
	return w.Flush()
}

// TypesTried says in lines what of a job's values codecs were tried on: chars is what bytes were
// taken for, and untyped counts those of unknown types.
func TypesTried(chars string, untyped uint64) (text string) {
	if chars != "" {
		text = fmt.Sprintf("values of type CHAR were taken for %s, as their commands say: enable codecs with --char-values %[1]s\n", chars)
	}
	if untyped > 0 {
		text += fmt.Sprintf("%d bytes of values are of an unknown type, integers or compressed, and were not tried; if they are floats of type CHAR, set --char-values\n", untyped)
	}
	return text
}

// PrintAdvice prints what each codec would save, by a trial.
func PrintAdvice(out io.Writer, d *api.CodecsDescription) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, h := range d.GetFollowers() {
		switch {
		case h.GetUntried() != "":
			fmt.Fprintf(w, "%s could not try: %s\n", h.GetHost(), h.GetUntried())
		case h.GetFollowing() && h.GetTrial() < d.GetTrial().GetNumber():
			fmt.Fprintf(w, "%s has not reported\n", h.GetHost())
		}
	}
	if len(d.GetAdvice()) == 0 {
		fmt.Fprintln(w, "nothing passed the proxies during the trial")
	}
	for _, a := range d.GetAdvice() {
		c := fleet.Codecs(a.GetJob(), d).Advice
		fmt.Fprintf(w, "job %s: %v s on %d hosts, %d bytes of pushes (%d), %d of pulls\n", a.GetJob(), c.Seconds, c.Hosts, c.PushBytes, c.Pushes, c.PullBytes)
		fmt.Fprint(w, TypesTried(c.CharValues, c.UntypedBytes))
		fmt.Fprintln(w, "codec\tpushes to\tpulls to\tsaved\tgradient that waits, in steps")
		for _, row := range c.Codecs {
			fmt.Fprintf(w, "%s\t%.2f%%\t%.2f%%\t%.1f%%\t%.2f\n", row.Codec, 100*float64(row.PushBytes)/float64(max(1, c.PushBytes)),
				100*float64(row.PullBytes)/float64(max(1, c.PullBytes)), 100*row.Saved, row.Waits)
		}
		switch {
		case c.Suggested == "":
			fmt.Fprintln(w, "suggested: nothing; no codec without loss saves a tenth of the bytes")
		case strings.HasPrefix(c.Suggested, "threshold"):
			fmt.Fprintf(w, "suggested: %s, the highest under which at most %d steps' gradient waits; threshold auto holds back more as training goes on\n", c.Suggested, fleet.MostWaiting)
		default:
			fmt.Fprintf(w, "suggested: %s, which is lossless; thresholds save little more, or more than %d steps' gradient waits (threshold auto: about 1%% of the steps so far)\n", c.Suggested, fleet.MostWaiting)
		}
	}
	return w.Flush()
}

// PrintRuns prints the runs of jobs beside each other.
func PrintRuns(out io.Writer, runs page.Runs) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(runs.Jobs) == 0 {
		fmt.Fprintln(w, "this planner has seen no jobs")
	}
	for _, j := range runs.Jobs {
		fmt.Fprintf(w, "job %s\n", cli.Clean(j.Name))
		fmt.Fprintln(w, "began\ttook\trun\tservers\tworkers\tsteps\tsteps/s\tbytes/step\tleft hosts\tscheduler\t")
		for _, r := range j.Runs {
			id, took := r.ID, r.Last.Sub(r.Began).Round(time.Second).String()
			if id == "" {
				id = "-"
			}
			if r.Running {
				took = "runs"
			}
			left := 0.0
			if r.Bytes > 0 {
				left = 100 * float64(r.LeftHostBytes) / float64(r.Bytes)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%.0f\t%.2f\t%.0f\t%.0f%%\t%s\t\n", r.Began.Format("2006-01-02 15:04:05"), took, cli.Clean(id),
				r.Servers, r.Workers, r.Steps, r.StepsPerSecond, r.BytesPerStep, left, cli.Clean(r.Job))
		}
	}
	return w.Flush()
}

// PrintChecked prints what was found of each part; an error says how many do not work.
func PrintChecked(w io.Writer, results []Checked, asJSON bool) error {
	bad := 0
	for _, r := range results {
		if !r.OK {
			bad++
		}
	}
	var err error
	if asJSON {
		err = json.NewEncoder(w).Encode(struct {
			OK    bool      `json:"ok"`
			Parts []Checked `json:"parts"`
		}{bad == 0, results})
	} else {
		for _, r := range results {
			said := "ok     " + r.Part + " " + r.Address
			if !r.OK {
				said = "FAILED " + r.Part + " " + r.Address + ": " + r.Problem
			}
			_, wrong := fmt.Fprintln(w, said)
			err = errors.Join(err, wrong)
		}
	}
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d of %d do not work", bad, len(results))
	}
	return err
}

// PrintProto prints a message of the planner as JSON. Fields keep the names of the .proto
// files, and those with zero values are printed, so that scripts find all of them.
func PrintProto(out io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	_, err = fmt.Fprintln(out, string(text))
	return err
}
