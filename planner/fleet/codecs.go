package fleet

import (
	"math"
	"strings"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// Codecs returns the rules and advice for a job as the page shows them. Only hosts whose proxies
// follow at present are listed.
func Codecs(job string, d *api.CodecsDescription) page.Codecs {
	c := page.Codecs{Job: job, LeftSeconds: d.GetLeftSeconds(), Tried: d.GetTrial() != nil, Hosts: []page.CodecHost{}}
	for _, j := range d.GetRules().GetJobs() {
		if j.GetJob() == job {
			c.Rules = j.GetRules()
		}
	}
	for _, f := range d.GetFollowers() {
		// A proxy has reported if its newest report is of the trial that the planner describes;
		// reports of an earlier trial do not count.
		if f.GetFollowing() {
			c.Hosts = append(c.Hosts, page.CodecHost{Host: f.GetHost(), Current: f.GetVersion() == d.GetRules().GetVersion(),
				Refused: f.GetRefused(), Untried: f.GetUntried(), Reported: d.GetTrial() != nil && f.GetTrial() == d.GetTrial().GetNumber()})
		}
	}
	for _, a := range d.GetAdvice() {
		if a.GetJob() == job {
			c.Advice = advice(a)
		}
	}
	return c
}

// advice returns what codecs would have saved in a trial. Saved is a fraction of the bytes of
// pushes and pulls together, and negative for a codec that makes them larger. Waits is the norm of
// what thresholding would hold back relative to that of one step's gradient.
func advice(a *api.CodecAdvice) *page.CodecAdvice {
	out := &page.CodecAdvice{Seconds: finite(a.GetSeconds()), Hosts: int(a.GetHosts()), Pushes: a.GetPushes(),
		PushBytes: a.GetPushBytes(), PullBytes: a.GetPullBytes(), Missed: a.GetMissed(), CharValues: a.GetCharValues(), UntypedBytes: a.GetUntypedBytes(), Codecs: []page.CodecRow{}}
	all := float64(a.GetPushBytes() + a.GetPullBytes())
	for _, c := range a.GetCandidates() {
		row := page.CodecRow{Codec: c.GetCodec(), PushBytes: c.GetPushBytes(), PullBytes: c.GetPullBytes()}
		if all > 0 {
			row.Saved = 1 - float64(c.GetPushBytes()+c.GetPullBytes())/all
		}
		if a.GetStepSquares() > 0 {
			row.Waits = finite(math.Sqrt(c.GetWaitingSquares() / a.GetStepSquares()))
		}
		out.Codecs = append(out.Codecs, row)
	}
	out.Suggested = suggested(out.Codecs)
	return out
}

// MostWaiting is how many steps' gradient a suggested threshold holds back at most, and
// leastSaved the fraction of all bytes that it has to save beyond what lossless codecs do, or
// these beyond nothing.
const (
	MostWaiting = 2
	leastSaved  = 0.1
)

// suggested returns the codec that saves most among those that lose nothing: lossless ones, and
// thresholds that hold back little. What a threshold holds back comes later, so a large residual
// is what delays learning (DCT, Gupta and others 2021, section 3).
func suggested(rows []page.CodecRow) (codec string) {
	lossless, threshold := page.CodecRow{}, page.CodecRow{}
	for _, r := range rows {
		switch {
		case r.Codec == "compact", r.Codec == "unchanged":
			if r.Saved > lossless.Saved {
				lossless = r
			}
		case strings.HasPrefix(r.Codec, "threshold ") && !strings.Contains(r.Codec, ","):
			if r.Saved > threshold.Saved && r.Waits > 0 && r.Waits <= MostWaiting {
				threshold = r
			}
		}
	}
	switch {
	case threshold.Saved > lossless.Saved+leastSaved:
		return threshold.Codec
	case lossless.Saved > leastSaved:
		return lossless.Codec
	}
	return ""
}

// finite returns x, and 0 if it is infinite or no number, for which JSON has no form. Sums of squares
// become so if the model of a job diverges.
func finite(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return x
}
