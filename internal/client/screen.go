package client

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/draw"
)

// FindJob returns the job of a name, or of a scheduler's host:port; nil if there is none. Of
// several runs of one name it is one that is not over.
func FindJob(jobs []page.Job, name string) (found *page.Job) {
	for i := range jobs {
		if j := &jobs[i]; j.Name == name || j.Called == name && (found == nil || j.State != page.Over) {
			found = j
		}
	}
	return found
}

// FetchScreen asks an agent or planner for what a screen shows; of job more, by its
// name or its scheduler's host:port, or of the first that is not over. Its texts are fit for
// a terminal.
func FetchScreen(ctx context.Context, agent, job string) (*draw.Screen, error) {
	s := &draw.Screen{At: time.Now()}
	var jobs page.Jobs
	if err := Get(ctx, agent, "/api/v1/jobs", nil, &jobs); err != nil {
		return nil, err
	}
	if err := Get(ctx, agent, "/api/v1/agent", nil, &s.Agent); err != nil {
		return nil, err
	}
	s.Jobs = jobs.Jobs
	shown := job
	named := FindJob(s.Jobs, job)
	switch i := slices.IndexFunc(s.Jobs, func(j page.Job) bool { return j.State != page.Over }); {
	case job != "" && named != nil:
		shown = named.Name
	case len(s.Jobs) > 0:
		if shown = s.Jobs[max(i, 0)].Name; job != "" {
			s.Trouble = fmt.Sprintf("no such job: %s", job)
		}
	}
	if len(s.Jobs) > 0 {
		lately := url.Values{"job": {shown}, "from": {"-60"}}
		if err := Get(ctx, agent, "/api/v1/servers", lately, &s.Servers); err != nil {
			return nil, err
		}
		if err := Get(ctx, agent, "/api/v1/history", url.Values{"job": {shown}}, &s.History); err != nil {
			s.History = page.History{} // one of an older version
		}
	}
	s.Shown = shown
	fit(s)
	return s, nil
}

// fit makes the texts of a screen fit for a terminal.
func fit(s *draw.Screen) {
	clean := func(texts ...*string) {
		for _, text := range texts {
			*text = cli.Clean(*text)
		}
	}
	clean(&s.Agent.Host, &s.Agent.Version, &s.Shown, &s.Trouble)
	for i := range s.Agent.Hosts {
		h := &s.Agent.Hosts[i]
		clean(&h.Host)
		for l := range h.Lost {
			clean(&h.Lost[l].Reason)
		}
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		clean(&j.Name, &j.Called, &j.State, &j.What)
		for l := range j.Stalls {
			clean(&j.Stalls[l].Kind, &j.Stalls[l].Text)
		}
	}
	for i := range s.Servers.Servers {
		clean(&s.Servers.Servers[i].Name)
	}
	for i := range s.Servers.Workers {
		clean(&s.Servers.Workers[i].Name)
	}
}

// Histories asks an agent or planner for the last hour of each job, by its name; those of a
// version that has none are left out.
func Histories(ctx context.Context, agent string, jobs []page.Job) map[string]page.History {
	all := map[string]page.History{}
	for _, j := range jobs {
		var h page.History
		if Get(ctx, agent, "/api/v1/history", url.Values{"job": {j.Name}}, &h) == nil {
			all[j.Name] = h
		}
	}
	return all
}

// HottestKeys asks an agent or planner for the n hottest keys of each job that is not
// over, by its name; nil where keys have no names there.
func HottestKeys(ctx context.Context, agent string, jobs []page.Job, n int) map[string][]page.HotKey {
	var there page.Names
	if Get(ctx, agent, "/api/v1/names", nil, &there) != nil || len(there.Names) == 0 {
		return nil // an older one serves none
	}
	named := map[string][]page.HotKey{}
	for _, j := range jobs {
		var keys page.Keys
		if j.State == page.Over || Get(ctx, agent, "/api/v1/keys", url.Values{"job": {j.Name}, "n": {strconv.Itoa(n)}}, &keys) != nil {
			continue // it may just have ended
		}
		named[j.Name] = keys.Hottest
	}
	return named
}

// Alphas asks an agent or planner how sparsely each job that is not over uses its
// parameters, by the job's name.
func Alphas(ctx context.Context, agent string, jobs []page.Job) map[string]page.Alpha {
	all := map[string]page.Alpha{}
	for _, j := range jobs {
		var a page.Alpha
		if j.State == page.Over || Get(ctx, agent, "/api/v1/alpha", url.Values{"job": {j.Name}}, &a) != nil {
			continue // it may just have ended; an older agent serves none
		}
		all[j.Name] = a
	}
	return all
}
