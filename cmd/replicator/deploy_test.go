package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// deployed are the files that start the program.
var deployed = []string{
	"../../deploy/kubernetes/agents.yaml", "../../deploy/systemd/replicator-agent.service", "../../deploy/systemd/replicator@.service",
}

// The flags and variables in deploy/ exist.
func TestDeployFlags(t *testing.T) {
	_, agent, _ := invoke(t, nil, "agent", "start", "--help")
	_, run, _ := invoke(t, nil, "run", "--help")
	flag, variable := regexp.MustCompile(`\s(--[a-z-]+)=`), regexp.MustCompile(`REPLICATOR_[A-Z_]+`)
	for _, name := range deployed {
		text, help := string(must.Get(os.ReadFile(name))(t)), agent
		if strings.HasSuffix(name, "@.service") {
			help = run
		}
		flags, variables := flag.FindAllStringSubmatch(text, -1), variable.FindAllString(text, -1)
		if len(flags) < 3 || len(variables) == 0 {
			t.Errorf("%s: flags %q, variables %q", name, flags, variables)
		}
		for _, f := range flags {
			if f[1] != "--from-file" && !strings.Contains(help, f[1]+"=") {
				t.Errorf("%s: there is no flag %s", name, f[1])
			}
		}
		for _, v := range variables {
			if !strings.Contains(run, "--"+strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(v, envPrefix), "_", "-"))+"=") {
				t.Errorf("%s: there is no variable %s", name, v)
			}
		}
	}
}

// The links of the ConfigMap are a links file.
func TestDeployLinks(t *testing.T) {
	_, text, found := strings.Cut(string(must.Get(os.ReadFile(deployed[0]))(t)), "  links.yaml: |\n")
	text, _, end := strings.Cut(text, "---\n")
	if f, err := parsedLinks(t, strings.Replace(text, "      spill-dir: /var/lib/replicator\n", "", 1)); !found || !end || err != nil || len(f.links) != 2 {
		t.Errorf("%v: %+v", err, f)
	}
}

// The units restart the program only after codes that docs/exit-codes.md says a restart helps.
func TestDeployUnits(t *testing.T) {
	for _, name := range deployed[1:] {
		text := string(must.Get(os.ReadFile(name))(t))
		_, line, _ := strings.Cut(text, "RestartPreventExitStatus=")
		line, _, _ = strings.Cut(line, "\n")
		prevented := strings.Fields(line)
		for code := 1; code <= 11; code++ {
			if helps := restartHelps(code); helps == slices.Contains(prevented, string(rune('0'+code))) && code < 10 {
				t.Errorf("%s: code %d, a restart helps: %v", name, code, helps)
			}
		}
		if slices.Contains(prevented, "10") || !slices.Contains(prevented, "11") || !strings.Contains(text, "Restart=on-failure") {
			t.Errorf("%s: %q", name, prevented)
		}
	}
	if path, err := exec.LookPath("systemd-analyze"); err == nil {
		for _, name := range deployed[1:] {
			out, _ := exec.CommandContext(t.Context(), path, "verify", "--man=no", name).CombinedOutput()
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "replicator") && !strings.Contains(line, "is not executable") {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
	}
}
