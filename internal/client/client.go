// Package client asks agents, proxies and planners, as the commands that people give
// do: for JSON at their pages ([Get]), for plans and rules by the planner's API
// ([Planner]), and for orders at the unix sockets of this host. It prints what they
// answer, and says in words what may be the matter where nobody, or somebody else,
// answers.
package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
)

// Where the pages of an agent and of a planner are by default.
const (
	AgentURL   = "http://127.0.0.1:9810"
	PlannerURL = "http://127.0.0.1:9812"
)

// answerIn is how long an answer may take, answerBytes how long it may be.
const (
	answerIn    = time.Minute
	answerBytes = 256 << 20
)

// Get gets a JSON answer of an agent, proxy or planner into v, within a minute and at
// most 256 MiB of it; a base unix:PATH is a proxy's control socket. Its errors say what
// may be the matter, and speak of flags where the answer speaks of parameters.
func Get(ctx context.Context, base, path string, query url.Values, v any) error {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	client := http.DefaultClient
	if path, ok := strings.CutPrefix(base, "unix:"); ok {
		client, base = control.Client(path), "http://"+filepath.Base(path)
	}
	given := base
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	where := strings.TrimSuffix(base, "/") + path
	if len(query) > 0 {
		where += "?" + query.Encode()
	}
	u, err := url.Parse(base)
	if err == nil && u.Port() != "" {
		_, err = net.LookupPort("tcp", u.Port())
	}
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return cli.Usagef("address %q: want HOST:PORT or http://HOST:PORT", given)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return cli.Usagef("address %q: %w", base, err)
	}
	response, err := client.Do(request)
	if err != nil {
		if why := notHTTP(base, err); why != "" {
			return fmt.Errorf("%s: %s (%w)", base, why, err)
		}
		return fmt.Errorf("no response from %s (is it running, and is the address correct%s?): %w", base, atPort(base), err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, answerBytes))
	if err != nil {
		return fmt.Errorf("reading the response: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var failed struct{ Error string }
		if json.Unmarshal(body, &failed) != nil || failed.Error == "" {
			failed.Error = fmt.Sprintf("%s: %.300q%s", response.Status, body, atPort(base))
		}
		if response.StatusCode == http.StatusNotFound && strings.HasPrefix(failed.Error, "not found: ") {
			failed.Error += ": this is a different psidecar component" + atPort(base)
		}
		return fmt.Errorf("%s: %s", where, asFlags(failed.Error, query))
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: not a psidecar response: %w%s", where, err, atPort(base))
	}
	return nil
}

// parameter matches a parameter of the interface where an answer speaks of it.
var parameter = regexp.MustCompile(`\b(job|measure|first|last|from|to|blocks|by|workers|n)=(:?)`)

// asFlags puts flags for the interface's parameters in what an agent or planner
// answers: those are what the user has given. Others stay.
func asFlags(text string, query map[string][]string) string {
	return parameter.ReplaceAllStringFunc(text, func(p string) string {
		name, after, _ := strings.Cut(p, "=")
		if _, given := query[name]; !given && name != "job" {
			return p
		}
		if after == "" {
			after = " "
		}
		return "--" + name + after
	})
}
