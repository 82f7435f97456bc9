package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set at build time with -ldflags "-X main.version=...".
var version = "devel"

// versionInfo is what version --json prints. Revision and Time are those of the commit; they
// are empty in a build from a folder without version control.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// newVersionCommand returns psidecar version.
func newVersionCommand(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version and build information",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := buildVersion()
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				return json.NewEncoder(e.stdout).Encode(info)
			}
			_, err := fmt.Fprintf(e.stdout, "psidecar %s %s %s %s\n", info.Version, info.Revision, info.Go, info.Platform)
			return err
		},
	}
	cmd.Flags().Bool("json", false, "print JSON")
	return cmd
}

// buildVersion returns the version with what the Go linker has recorded of the build.
func buildVersion() versionInfo {
	info := versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Revision = s.Value
		case "vcs.time":
			info.Time = s.Value
		}
	}
	return info
}
