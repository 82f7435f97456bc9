package cli

import (
	"runtime"
	"runtime/debug"
)

// Version is what version --json prints. Revision and Time are those of the commit; they are
// empty in a build from a folder without version control.
type Version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// VersionOf returns a program's version with what the Go linker has recorded of the build.
func VersionOf(version string) Version {
	info := Version{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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
