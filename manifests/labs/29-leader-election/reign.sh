# reign.sh NAME TERMS: tries to get the Lease throne, and renews it that many times. A write compares the version that was read, so that
# of two candidates who see the throne empty only one gets it.
name=$1 terms=$2
while [ "$terms" -gt 0 ]; do
  podwright get lease throne -o yaml > "$name.yaml"
  holder=$(sed -n 's/^  holderIdentity: //p' "$name.yaml")
  renewed=$(sed -n 's/^  renewTime: "\?\([^"]*\)"\?/\1/p' "$name.yaml")
  now=$(date -u +%Y-%m-%dT%H:%M:%S.%6NZ)
  age=$(($(date +%s) - $(date -d "${renewed:-1970-01-01}" +%s)))
  if [ "$holder" = "$name" ] || [ "$age" -gt 3 ]; then
    sed -i -e '/^  renewTime:/d' -e "s/^  holderIdentity: .*/  holderIdentity: $name\n  renewTime: \"$now\"/" "$name.yaml"
    if podwright replace -f "$name.yaml" > "$name.log" 2>&1; then
      echo "$name leads"
      terms=$((terms - 1))
    else
      echo "$name lost the race: $(cut -c 1-60 "$name.log")"
    fi
  fi
  sleep 0.5
done
